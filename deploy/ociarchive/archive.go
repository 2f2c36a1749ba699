package ociarchive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

// Media types and annotations of the OCI image specification 1.0, and the annotation by
// which containerd knows an image's whole name.
const (
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	refName       = "org.opencontainers.image.ref.name"
	wholeName     = "io.containerd.image.name"
)

// Image is what an archive holds under one or more names.
type Image struct {
	// Names such as "registry.example/name:tag".
	Names []string
	Tree  *Tree
	// Architecture as Go names it.
	Architecture    string
	Entrypoint, Cmd []string
	Env             []string
	User            string
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

type imageConfig struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		User       string   `json:"User,omitempty"`
		Env        []string `json:"Env,omitempty"`
		Entrypoint []string `json:"Entrypoint,omitempty"`
		Cmd        []string `json:"Cmd,omitempty"`
		WorkingDir string   `json:"WorkingDir"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// archive is one that is being written.
type archive struct {
	tw     *tar.Writer
	blobs  map[string]bool
	layers map[*Tree]descriptor
	dir    string
}

// Write writes an archive of images to a file, whole or not at all.
func Write(path string, images ...Image) error {
	out, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o644))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = out.Cleanup() }() // After CloseAtomicallyReplace it does nothing.
	a := &archive{tw: tar.NewWriter(out), blobs: map[string]bool{}, layers: map[*Tree]descriptor{}, dir: filepath.Dir(path)}
	if err := a.images(images); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := a.tw.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := out.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (a *archive) images(images []Image) error {
	index := manifest{SchemaVersion: 2, MediaType: mediaIndex}
	for _, i := range images {
		d, err := a.image(i)
		if err != nil {
			return fmt.Errorf("image %s: %w", strings.Join(i.Names, ", "), err)
		}
		for _, name := range i.Names {
			named := d
			named.Annotations = map[string]string{wholeName: name, refName: name[strings.LastIndexByte(name, ':')+1:]}
			index.Manifests = append(index.Manifests, named)
		}
	}
	raw, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := a.bytes("index.json", raw); err != nil {
		return err
	}
	return a.bytes("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
}

func (a *archive) image(i Image) (descriptor, error) {
	layer, err := a.layer(i.Tree)
	if err != nil {
		return descriptor{}, err
	}
	c := imageConfig{Architecture: i.Architecture, OS: "linux"}
	c.Config.User, c.Config.Env, c.Config.Entrypoint, c.Config.Cmd, c.Config.WorkingDir = i.User, i.Env, i.Entrypoint, i.Cmd, "/"
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{layer.Digest}
	config, err := a.json(mediaConfig, c)
	if err != nil {
		return descriptor{}, err
	}
	return a.json(mediaManifest, manifest{SchemaVersion: 2, MediaType: mediaManifest, Config: &config, Layers: []descriptor{layer}})
}

// layer writes a tree, which is written to a temporary file first: its name in the
// archive is its digest.
func (a *archive) layer(t *Tree) (descriptor, error) {
	if d, ok := a.layers[t]; ok {
		return d, nil
	}
	f, err := os.CreateTemp(a.dir, ".layer-*")
	if err != nil {
		return descriptor{}, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer f.Close()
	sum := sha256.New()
	if err := t.write(io.MultiWriter(f, sum)); err != nil {
		return descriptor{}, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return descriptor{}, err
	}
	d := descriptor{MediaType: mediaLayer, Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Size: size}
	a.layers[t] = d
	return d, a.blob(d, f)
}

func (a *archive) json(media string, value any) (descriptor, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(raw)
	d := descriptor{MediaType: media, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(raw))}
	return d, a.blob(d, strings.NewReader(string(raw)))
}

func (a *archive) blob(d descriptor, r io.Reader) error {
	if a.blobs[d.Digest] {
		return nil
	}
	a.blobs[d.Digest] = true
	name := "blobs/" + strings.Replace(d.Digest, ":", "/", 1)
	if err := a.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: d.Size}); err != nil {
		return err
	}
	_, err := io.Copy(a.tw, r)
	return err
}

func (a *archive) bytes(name string, raw []byte) error {
	if err := a.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(raw))}); err != nil {
		return err
	}
	_, err := a.tw.Write(raw)
	return err
}
