package ociarchive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// maxFile bounds one file of a tree, in bytes.
const maxFile = 1 << 30

// Tree is the file system of a layer. The zero Tree is not usable: make one with NewTree.
type Tree struct {
	entries map[string]*entry
}

type entry struct {
	header  tar.Header
	content []byte
	// file on the disk that holds the content instead.
	file string
}

// NewTree makes an empty tree.
func NewTree() *Tree { return &Tree{entries: map[string]*entry{}} }

// clean turns any spelling of a path into that of the tree: no leading slash, and no
// way out of it.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// resolve follows the symbolic links of the directories of a path, as the kernel would.
func (t *Tree) resolve(name string) string {
	parts := strings.Split(clean(name), "/")
	at := ""
	for i := 0; i < len(parts)-1; i++ {
		at = path.Join(at, parts[i])
		// Bounded: a link may lead to a link, but not for ever.
		for range 16 {
			e := t.entries[at]
			if e == nil || e.header.Typeflag != tar.TypeSymlink {
				break
			}
			target := e.header.Linkname
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(at), target)
			}
			at = clean(target)
		}
	}
	return path.Join(at, parts[len(parts)-1])
}

// put adds an entry with its parents.
func (t *Tree) put(e *entry) {
	e.header.Name = t.resolve(e.header.Name)
	t.parents(e.header.Name)
	t.entries[e.header.Name] = e
}

func (t *Tree) parents(name string) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if t.entries[dir] == nil {
			t.entries[dir] = &entry{header: tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}}
		}
	}
}

// Dir adds a directory.
func (t *Tree) Dir(name string, mode int64) {
	t.put(&entry{header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}})
}

// Link adds a symbolic link; one that is there is replaced.
func (t *Tree) Link(name, target string) {
	t.put(&entry{header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}})
}

// Bytes adds a file.
func (t *Tree) Bytes(name string, mode int64, content []byte) {
	t.put(&entry{header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}, content: content})
}

// File adds a file of this machine. It is read by Write.
func (t *Tree) File(name string, mode int64, file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("add %s to an image: %w", name, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("add %s to an image: %s is not a file", name, file)
	}
	t.put(&entry{header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size()}, file: file})
	return nil
}

// Has reports whether the tree has something at that path.
func (t *Tree) Has(name string) bool { return t.entries[t.resolve(name)] != nil }

// Unpack adds what a tar holds. Directories never replace links to directories; keep
// says which paths (without a leading slash) are wanted. Devices are left out.
func (t *Tree) Unpack(r io.Reader, keep func(name string) bool) error {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("unpack into an image: %w", err)
		}
		name := clean(h.Name)
		if name == "" || !keep(name) {
			continue
		}
		e := &entry{header: tar.Header{Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid, Linkname: h.Linkname}}
		switch h.Typeflag {
		case tar.TypeReg:
			if h.Size > maxFile {
				return fmt.Errorf("unpack into an image: %s has more than %d bytes", name, maxFile)
			}
			if e.content, err = io.ReadAll(tr); err != nil {
				return fmt.Errorf("unpack %s into an image: %w", name, err)
			}
			e.header.Size = int64(len(e.content))
		case tar.TypeLink:
			e.header.Linkname = t.resolve(h.Linkname)
		case tar.TypeDir:
			if old := t.entries[t.resolve(name)]; old != nil && old.header.Typeflag == tar.TypeSymlink {
				continue
			}
		case tar.TypeSymlink:
		default:
			continue
		}
		t.put(e)
	}
}

// write writes the layer: sorted, with no times and no names of users.
func (t *Tree) write(w io.Writer) error {
	tw := tar.NewWriter(w)
	names := slices.Sorted(maps.Keys(t.entries))
	// What a hard link refers to comes before it.
	slices.SortStableFunc(names, func(a, b string) int { return rank(t.entries[a]) - rank(t.entries[b]) })
	for _, name := range names {
		e := t.entries[name]
		h := e.header
		h.Format = tar.FormatPAX
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := tw.WriteHeader(&h); err != nil {
			return fmt.Errorf("write %s into a layer: %w", name, err)
		}
		if err := e.copy(tw); err != nil {
			return fmt.Errorf("write %s into a layer: %w", name, err)
		}
	}
	return tw.Close()
}

func rank(e *entry) int {
	if e.header.Typeflag == tar.TypeLink {
		return 1
	}
	return 0
}

func (e *entry) copy(w io.Writer) error {
	if e.file == "" {
		_, err := w.Write(e.content)
		return err
	}
	f, err := os.Open(e.file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
