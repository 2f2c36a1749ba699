package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func frames(r *Reader) ([]string, error) {
	var got []string
	for {
		f, err := r.Next()
		if err != nil {
			return got, err
		}
		got = append(got, string(f))
	}
}

func TestReader(t *testing.T) {
	large := `{"x":"` + strings.Repeat("y", 3<<20) + `"}`
	for _, test := range []struct {
		name, stream string
		limit        int
		want         []string
		err          error
	}{
		{"nothing", "", 100, nil, io.EOF},
		{"space", " \n\t\r", 100, nil, io.EOF},
		{"two", `{"a":1}{"b":[{},[]]}`, 100, []string{`{"a":1}`, `{"b":[{},[]]}`}, io.EOF},
		{"space between", "{} \n {}\n", 100, []string{"{}", "{}"}, io.EOF},
		{"braces in strings", `{"a":"}{\"}]\\"}{}`, 100, []string{`{"a":"}{\"}]\\"}`, "{}"}, io.EOF},
		{"cut off", `{}{"a":`, 100, []string{"{}"}, io.ErrUnexpectedEOF},
		{"at the limit", `{}{"a":12}`, 8, []string{"{}", `{"a":12}`}, io.EOF},
		{"over the limit", `{}{"a":123}`, 8, []string{"{}"}, ErrTooLarge},
		{"no object", `{}x`, 100, []string{"{}"}, ErrSyntax},
		{"an array", `[]`, 100, nil, ErrSyntax},
		{"large", large + "{}" + large, 4 << 20, []string{large, "{}", large}, io.EOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(test.stream), iotest.HalfReader(strings.NewReader(test.stream)), iotest.OneByteReader(strings.NewReader(test.stream))} {
				got, err := frames(NewReader(r, test.limit))
				if diff := cmp.Diff(test.want, got); diff != "" && len(diff) < 2000 || len(test.want) != len(got) {
					t.Errorf("(-want +got)\n%s", diff)
				}
				if !errors.Is(err, test.err) {
					t.Errorf("want %v, got %v", test.err, err)
				}
			}
		})
	}
}

func TestEncode(t *testing.T) {
	request, err := Request(7, "transact", "db", 1)
	if err != nil {
		t.Fatal(err)
	}
	notification, err := Notification("cancel")
	if err != nil {
		t.Fatal(err)
	}
	response, err := Response(json.RawMessage(`"echo"`), json.RawMessage(`[1]`))
	if err != nil {
		t.Fatal(err)
	}
	got := string(request) + "\n" + string(notification) + "\n" + string(response)
	want := `{"method":"transact","params":["db",1],"id":7}
{"method":"cancel","params":[],"id":null}
{"result":[1],"error":null,"id":"echo"}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := Request(1, "x", func() {}); err == nil {
		t.Error("a function was encoded")
	}
}

// FuzzReader holds that any stream is cut into valid frames that are the stream.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"id":null,"method":"echo","params":[]} {"x":"\"}"}`))
	f.Add([]byte(`{]{[}`))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream), 1<<10)
		var all []byte
		for {
			frame, err := r.Next()
			if err != nil {
				break
			}
			if len(frame) > 1<<10 {
				t.Fatalf("a frame of %d bytes", len(frame))
			}
			all = append(all, frame...)
			if m, err := Decode(frame); err == nil && m.Method != "" && !Null(m.ID) && !json.Valid(m.ID) {
				t.Fatalf("an invalid id %q", m.ID)
			}
		}
		strip := func(b []byte) string { return strings.Join(strings.Fields(string(b)), "") }
		if !strings.HasPrefix(strip(stream), strip(all)) {
			t.Fatalf("%q was cut into %q", stream, all)
		}
	})
}
