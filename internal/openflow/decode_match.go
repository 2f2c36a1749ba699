package openflow

// match reads a match with its header and padding.
func (r *reader) match() Match {
	typ, n := r.u16(), int(r.u16())
	fields := r.sub(n - 4)
	r.take((8 - n%8) % 8)
	if typ != 1 {
		r.fail("a match of type %d, want 1", typ)
	}
	var terms []Term
	for fields.more() {
		f, masked, size := fields.fieldHeader()
		t := Term{Field: f, Mask: f.full()}
		t.Value = fields.value(f.size())
		if masked {
			t.Mask = fields.value(f.size())
		}
		if want := f.size(); size != want && size != 2*want {
			fields.fail("field %s has %d bytes", f, size)
		}
		terms = append(terms, t)
	}
	if fields.err != nil {
		r.fail("match: %w", fields.err)
	}
	if r.err != nil {
		return nil
	}
	return NewMatch(terms...)
}

// fieldHeader reads a header; size is that of what follows.
func (r *reader) fieldHeader() (f Field, masked bool, size int) {
	h := r.u32()
	if r.err != nil {
		return fieldNone, false, 0
	}
	f, ok := fieldByHeader(h)
	masked, size = h>>8&1 != 0, int(h&0xff)
	switch {
	case !ok:
		r.fail("field with header %#x is not known", h)
	case masked && size != 2*f.size(), !masked && size != f.size():
		r.fail("field %s has %d bytes", f, size)
	}
	return f, masked, size
}

// source reads the header of a field that an action names, without a value. Zero
// is no field.
func (r *reader) source() Field {
	h := r.u32()
	if h == 0 || r.err != nil {
		return fieldNone
	}
	f, ok := fieldByHeader(h)
	if !ok {
		r.fail("field with header %#x is not known", h)
	}
	return f
}
