package ociarchive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// files reads a tar: name → content, or what a link leads to.
func files(t *testing.T, r io.Reader) (map[string]string, []string) {
	t.Helper()
	out := map[string]string{}
	var order []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out, order
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		if h.Linkname != "" {
			text = "→ " + h.Linkname
		}
		if !h.ModTime.IsZero() && h.ModTime.Unix() != 0 {
			t.Errorf("%s has the time %s", h.Name, h.ModTime)
		}
		out[h.Name] = text
		order = append(order, h.Name)
	}
}

func layerOf(t *testing.T, tree *Tree) (map[string]string, []string) {
	t.Helper()
	var b bytes.Buffer
	if err := tree.write(&b); err != nil {
		t.Fatal(err)
	}
	return files(t, &b)
}

func TestTreeFollowsLinksOfDirectories(t *testing.T) {
	tree := NewTree()
	tree.Dir("usr/bin", 0o755)
	tree.Link("bin", "usr/bin")
	tree.Bytes("/bin/../bin/sh", 0o755, []byte("shell"))
	tree.Bytes("a/b/c", 0o644, nil)
	tree.Link("loop", "loop")
	tree.Bytes("loop/x", 0o644, nil) // must end
	if !tree.Has("bin/sh") || !tree.Has("usr/bin/sh") || tree.Has("sh") {
		t.Error("Has does not follow links")
	}
	got, order := layerOf(t, tree)
	if got["usr/bin/sh"] != "shell" || got["bin"] != "→ usr/bin" {
		t.Errorf("layer = %v", got)
	}
	at := map[string]int{}
	for i, name := range order {
		at[name] = i
	}
	if at["a/"] > at["a/b/"] || at["a/b/"] > at["a/b/c"] {
		t.Errorf("parents come late: %v", order)
	}
}

func TestUnpackKeepsLinksAndLeavesDevicesOut(t *testing.T) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "./bin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "./bin/z", Mode: 0o4755},
		{Typeflag: tar.TypeLink, Name: "./bin/hard", Linkname: "./bin/z"},
		{Typeflag: tar.TypeChar, Name: "./dev/null"},
		{Typeflag: tar.TypeReg, Name: "../../etc/evil"},
		{Typeflag: tar.TypeReg, Name: "./usr/share/doc/x"},
	} {
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	tree := NewTree()
	tree.Dir("usr/bin", 0o755)
	tree.Link("bin", "usr/bin")
	if err := tree.Unpack(&b, func(name string) bool { return !strings.HasPrefix(name, "usr/share/") }); err != nil {
		t.Fatal(err)
	}
	got, order := layerOf(t, tree)
	want := map[string]string{"bin": "→ usr/bin", "etc/": "", "etc/evil": "", "usr/": "", "usr/bin/": "", "usr/bin/z": "", "usr/bin/hard": "→ usr/bin/z"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
	if order[len(order)-1] != "usr/bin/hard" {
		t.Errorf("a hard link comes before what it refers to: %v", order)
	}
}

func TestArchiveIsAnImageLayout(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	tree := NewTree()
	if err := tree.File("usr/bin/program", 0o755, program); err != nil {
		t.Fatal(err)
	}
	images := []Image{
		{Names: []string{"registry.example:5000/a:v1", "registry.example:5000/a:latest"}, Tree: tree, Architecture: "amd64", Entrypoint: []string{"/usr/bin/program"}},
		{Names: []string{"registry.example:5000/b:v1"}, Tree: tree, Architecture: "amd64", Cmd: []string{"sh"}},
	}
	var archives [2][]byte
	for i := range archives {
		path := filepath.Join(dir, "out.tar")
		if err := Write(path, images...); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = raw
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the same images give other bytes")
	}
	got, _ := files(t, bytes.NewReader(archives[0]))
	layers := 0
	for name, text := range got {
		digest, ok := strings.CutPrefix(name, "blobs/sha256/")
		if sum := sha256.Sum256([]byte(text)); ok && hex.EncodeToString(sum[:]) != digest {
			t.Errorf("%s is not what its name says", name)
		}
		if strings.Contains(text, "ustar") {
			layers++
		}
	}
	if layers != 1 {
		t.Errorf("the shared layer is there %d times", layers)
	}
	var index manifest
	if err := json.Unmarshal([]byte(got["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range index.Manifests {
		names = append(names, m.Annotations[wholeName]+" "+m.Annotations[refName])
		if got["blobs/"+strings.Replace(m.Digest, ":", "/", 1)] == "" {
			t.Errorf("manifest %s is missing", m.Digest)
		}
	}
	want := []string{"registry.example:5000/a:v1 v1", "registry.example:5000/a:latest latest", "registry.example:5000/b:v1 v1"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".layer-*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

func TestMissingFileIsNamed(t *testing.T) {
	err := NewTree().File("usr/bin/x", 0o755, filepath.Join(t.TempDir(), "nothing"))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "usr/bin/x") {
		t.Errorf("File = %v", err)
	}
}
