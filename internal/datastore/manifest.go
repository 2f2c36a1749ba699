package datastore

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	// maxManifest bounds what DecodeManifest reads, in bytes.
	maxManifest = 64 << 20
	// maxListDepth bounds lists inside of lists.
	maxListDepth = 4
)

// DecodeManifest reads the objects of a YAML stream with any number of documents,
// or of concatenated JSON, in their order. Lists are expanded. Unknown and
// duplicate fields are errors. An error names the document, the object and the
// field: "document 3: Pod web/frontend: unknown field \"spec.contaners\"". All
// documents are looked at; the errors are joined. Nothing is defaulted or
// validated beyond that: a namespaced object without namespace has none.
func DecodeManifest(r io.Reader) ([]Object, error) {
	documents, decode, err := splitManifest(r)
	if err != nil {
		return nil, err
	}
	var objects []Object
	var errs []error
	for i, doc := range documents {
		got, err := decode(doc)
		if err != nil {
			errs = append(errs, fmt.Errorf("document %d: %w", i+1, err))
			continue
		}
		objects = append(objects, got...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return objects, nil
}

// DefaultNamespace gives the namespaced objects that name no namespace this one.
func DefaultNamespace(objects []Object, namespace string) {
	for _, o := range objects {
		if r, err := LookupObject(o); err == nil && r.Namespaced && o.GetNamespace() == "" {
			o.SetNamespace(namespace)
		}
	}
}

// splitManifest returns the documents as they are written, empty ones included
// so that they count, and what decodes them.
func splitManifest(r io.Reader) ([][]byte, func([]byte) ([]Object, error), error) {
	limited := &io.LimitedReader{R: r, N: maxManifest + 1}
	in := bufio.NewReader(limited)
	split, decode := splitYAML, decodeYAML
	if looksLikeJSON(in) {
		split = splitJSON
		decode = func(raw []byte) ([]Object, error) { return decodeJSON(raw, 0) }
	}
	documents, err := split(in)
	if limited.N <= 0 {
		return nil, nil, fmt.Errorf("the manifest is larger than %d MiB: split it", maxManifest>>20)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("document %d: %w", len(documents)+1, err)
	}
	return documents, decode, nil
}

func looksLikeJSON(in *bufio.Reader) bool {
	head, _ := in.Peek(1024)
	head = bytes.TrimLeft(head, " \t\r\n")
	return len(head) > 0 && head[0] == '{'
}

func splitJSON(in *bufio.Reader) ([][]byte, error) {
	var out [][]byte
	for d := json.NewDecoder(in); ; {
		var raw json.RawMessage
		switch err := d.Decode(&raw); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, fmt.Errorf("not JSON: %w", err)
		}
		out = append(out, raw)
	}
}

func splitYAML(in *bufio.Reader) ([][]byte, error) {
	var out [][]byte
	for d := yamlstream.NewYAMLReader(in); ; {
		doc, err := d.Read()
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, fmt.Errorf("not YAML: %w", err)
		}
		if err := whole(doc); err != nil {
			return out, err
		}
		out = append(out, doc)
	}
}

// whole refuses what a decoder would read as more than one document, although no line of
// "---" parts it: it would read the first, and leave out the others without a word.
func whole(doc []byte) error {
	if bytes.HasPrefix(doc, []byte("\xff\xfe")) || bytes.HasPrefix(doc, []byte("\xfe\xff")) {
		return errors.New("it is in UTF-16: write it in UTF-8")
	}
	begun, ended := false, false
	for line := range bytes.FieldsFuncSeq(doc, isYAMLBreak) {
		text := bytes.TrimLeft(line, " \t")
		blank := len(text) == 0 || text[0] == '#' || text[0] == '%'
		switch mark := isMark(line, "---"); {
		case mark && begun, ended && !blank:
			return errors.New("another document begins in it: write --- on a line of its own before that, and end lines with a newline")
		case isMark(line, "..."):
			ended = true
		case mark || !blank:
			begun = true
		}
	}
	return nil
}

// isYAMLBreak tells what ends a line (YAML 1.1, section 4.1.4); the splitter knows newlines alone.
func isYAMLBreak(r rune) bool { return strings.ContainsRune("\n\r\u0085\u2028\u2029", r) }

// isMark tells whether a line begins or ends a document (YAML 1.1, section 4.3).
func isMark(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t')
}

func decodeYAML(doc []byte) ([]Object, error) {
	// Strict: a key that appears twice in a mapping is an error.
	raw, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		// Read leniently it may still tell what object it is about.
		var h header
		if raw, lerr := yaml.YAMLToJSON(doc); lerr == nil && json.Unmarshal(raw, &h) == nil && h.Kind != "" {
			return nil, fmt.Errorf("%s: %w", &h, oneLine(err))
		}
		return nil, fmt.Errorf("not YAML: %w", oneLine(err))
	}
	if text := bytes.TrimSpace(raw); len(text) == 0 || string(text) == "null" {
		return nil, nil // a document of comments only
	}
	return decodeJSON(raw, 0)
}

// header is what an object says about itself before it is read.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

func (h *header) String() string {
	name := h.Metadata.Name
	if name == "" {
		name = h.Metadata.GenerateName
	}
	if name == "" {
		return h.Kind + " without a name"
	}
	return h.Kind + " " + Key{Namespace: h.Metadata.Namespace, Name: name}.String()
}

// readHeader reads what says which object raw is. What raw is instead is told in words of
// whoever wrote it.
func readHeader(raw []byte) (h header, err error) {
	err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &h)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return h, fmt.Errorf("not an object with apiVersion and kind, but %s", wrong.Value)
	case errors.As(err, &wrong):
		return h, fmt.Errorf("not an object: %s is %s", wrong.Field, wrong.Value)
	case err != nil:
		return h, fmt.Errorf("not an object: %w", err)
	}
	return h, nil
}

func decodeJSON(raw []byte, depth int) ([]Object, error) {
	h, err := readHeader(raw)
	if err != nil {
		return nil, err
	}
	switch {
	case h.Kind == "":
		return nil, errors.New("kind is missing")
	case h.APIVersion == "":
		return nil, fmt.Errorf("%s: apiVersion is missing", &h)
	}
	if kind, ok := strings.CutSuffix(h.Kind, "List"); ok {
		return decodeList(&h, kind, depth)
	}
	r, err := lookupManifest(h.APIVersion, h.Kind)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", &h, err)
	}
	o := r.New()
	strict, err := kjson.UnmarshalStrict(raw, o)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("%s: %w", &h, oneLine(err))
	}
	o.GetObjectKind().SetGroupVersionKind(r.GroupVersionKind())
	return []Object{o}, nil
}

// decodeList expands "kind: List" and typed lists such as PodList, whose items may
// leave out their apiVersion and kind.
func decodeList(h *header, itemKind string, depth int) ([]Object, error) {
	if depth >= maxListDepth {
		return nil, fmt.Errorf("%s: lists are nested more than %d deep", h.Kind, maxListDepth)
	}
	var out []Object
	for i, raw := range h.Items {
		raw, err := fillHeader(raw, h.APIVersion, itemKind)
		if err != nil {
			return nil, fmt.Errorf("%s: items[%d]: %w", h.Kind, i, err)
		}
		got, err := decodeJSON(raw, depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s: items[%d]: %w", h.Kind, i, err)
		}
		out = append(out, got...)
	}
	return out, nil
}

// fillHeader gives an item of a typed list the apiVersion and kind that the list's
// type implies.
func fillHeader(raw json.RawMessage, apiVersion, kind string) (json.RawMessage, error) {
	h, err := readHeader(raw)
	if err != nil {
		return nil, err
	}
	body := bytes.TrimSpace(raw)
	if kind == "" || h.Kind != "" || h.APIVersion != "" || len(body) < 2 || body[0] != '{' {
		return raw, nil
	}
	head, err := json.Marshal(map[string]string{"apiVersion": apiVersion, "kind": kind})
	if err != nil {
		return nil, err
	}
	rest := bytes.TrimSpace(body[1:])
	if rest[0] == '}' {
		return head, nil
	}
	return slices.Concat(head[:len(head)-1], []byte(","), rest), nil
}

// lookupManifest finds the resource for an apiVersion and kind as written.
func lookupManifest(apiVersion, kind string) (*Resource, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, fmt.Errorf("apiVersion %q: %w", apiVersion, err)
	}
	r, err := Lookup(Kind(kind))
	if err != nil {
		return nil, fmt.Errorf("kind %q is not one that Fairlead knows: %s", kind, joinKinds())
	}
	if gv == r.GroupVersion || gv.Group == r.GroupVersion.Group && slices.Contains(r.Equivalent, gv.Version) {
		return r, nil
	}
	return nil, fmt.Errorf("apiVersion %q does not fit the kind: use %s", apiVersion, r.GroupVersion)
}

// oneLine joins what errors.Join put on several lines.
func oneLine(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}
