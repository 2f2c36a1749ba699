package examples

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// WorldFile holds the pods that all the examples of a folder are about.
const WorldFile = "world.yaml"

// Example is one file of policies, and what it does to the pods.
type Example struct {
	// Name is the file's, without ".yaml".
	Name    string
	Path    string
	Objects []datastore.Object
	Expect  []Expectation
}

// Expectation is a line "#   FROM -> TO:PORT/PROTOCOL  allowed|denied" of a comment;
// the pods are NAMESPACE/NAME.
type Expectation struct {
	From, To world.Key
	Port     uint16
	Protocol packet.Protocol
	Allowed  bool
}

// String is the expectation without its answer.
func (e Expectation) String() string {
	return fmt.Sprintf("%s -> %s:%d/%s", e.From, e.To, e.Port, e.Protocol)
}

// Read reads the world and the examples of a folder, in the order of their names.
func Read(dir string) (pods []datastore.Object, all []Example, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "[0-9]*.yaml"))
	if err != nil {
		return nil, nil, err
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("no examples in %s", dir)
	}
	whole, err := readFile(filepath.Join(dir, WorldFile))
	if err != nil {
		return nil, nil, err
	}
	for _, path := range files {
		e, err := readFile(path)
		if err != nil {
			return nil, nil, err
		}
		if len(e.Expect) == 0 {
			return nil, nil, fmt.Errorf("%s expects nothing", path)
		}
		all = append(all, e)
	}
	return whole.Objects, all, nil
}

func readFile(path string) (Example, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Example{}, err
	}
	e := Example{Name: strings.TrimSuffix(filepath.Base(path), ".yaml"), Path: path}
	if e.Objects, err = datastore.DecodeManifest(bytes.NewReader(text)); err != nil {
		return Example{}, fmt.Errorf("%s: %w", path, err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") || !strings.Contains(line, " -> ") {
			continue
		}
		x, err := parse(strings.TrimPrefix(line, "#"))
		if err != nil {
			return Example{}, fmt.Errorf("%s: %q: %w", path, strings.TrimSpace(line), err)
		}
		e.Expect = append(e.Expect, x)
	}
	return e, nil
}

func parse(line string) (x Expectation, err error) {
	words := strings.Fields(line)
	if len(words) != 4 || words[1] != "->" {
		return x, fmt.Errorf("want FROM -> TO:PORT/PROTOCOL allowed|denied")
	}
	to, rest, _ := strings.Cut(words[2], ":")
	port, proto, _ := strings.Cut(rest, "/")
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return x, fmt.Errorf("port: %w", err)
	}
	if x.Protocol, err = packet.ParseProtocol(proto); err != nil {
		return x, err
	}
	if x.From, err = pod(words[0]); err != nil {
		return x, err
	}
	if x.To, err = pod(to); err != nil {
		return x, err
	}
	switch words[3] {
	case "allowed", "denied":
		x.Allowed = words[3] == "allowed"
	default:
		return x, fmt.Errorf("%q is neither allowed nor denied", words[3])
	}
	x.Port = uint16(number)
	return x, nil
}

func pod(s string) (world.Key, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || namespace == "" || name == "" {
		return world.Key{}, fmt.Errorf("%q is not NAMESPACE/NAME", s)
	}
	return world.Key{Namespace: namespace, Name: name}, nil
}
