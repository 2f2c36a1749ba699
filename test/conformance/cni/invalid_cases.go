package conformance

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

func invalidCases() []testCase {
	return []testCase{
		{"Invalid environment is refused with code 4", "", testInvalidEnvironment},
		{"A namespace that does not exist is refused", "", testMissingNamespace},
		{"Invalid configuration is refused with code 6 or 7", "", testInvalidConfig},
		{"An unknown cniVersion is refused with code 1", "", testUnknownVersion},
		{"Huge standard input is survived", "", testHugeInput},
	}
}

// badCall is an execution that must be refused.
type badCall struct {
	name  string
	env   environment // replaces parts of a valid ADD's
	stdin []byte      // nil: a valid configuration
	codes []uint      // empty: any
}

// refuse runs bad calls against one container that must stay as it is.
func (s *suite) refuse(t *testing.T, calls []badCall) {
	t.Helper()
	a := s.eth0(t)
	held, observed := s.held(t)
	for _, call := range calls {
		t.Run(call.name, func(t *testing.T) {
			env := a.environment("ADD")
			maps.Copy(env, call.env)
			stdin := call.stdin
			if stdin == nil {
				stdin = s.mustConfig(t, 0, s.newest(), nil)
			}
			out, err := s.execute(t.Context(), 0, stdin, env)
			if err != nil {
				t.Fatal(err)
			}
			refusal, err := refusalOf(out)
			if err != nil {
				t.Fatal(err)
			}
			if len(call.codes) > 0 && !slices.Contains(call.codes, refusal.Code) {
				t.Errorf("code %d (%s), want one of %v", refusal.Code, refusal.Error(), call.codes)
			}
			if got := a.box.interfaces(t); len(got) != 0 {
				t.Errorf("the refused call left %+v in the container", got)
			}
		})
	}
	if now, _ := s.held(t); observed && !slices.Equal(held, now) {
		t.Errorf("held addresses were %v, after refused calls %v", held, now)
	}
}

func testInvalidEnvironment(t *testing.T, s *suite) {
	code := []uint{types.ErrInvalidEnvironmentVariables}
	// The specification names code 4 for missing variables, and for an unknown
	// container 3: both describe an empty or impossible id.
	container := []uint{types.ErrInvalidEnvironmentVariables, types.ErrUnknownContainer}
	calls := []badCall{
		{name: "unknown CNI_COMMAND", env: environment{"CNI_COMMAND": "FETCH"}, codes: code},
		{name: "CNI_COMMAND in lower case", env: environment{"CNI_COMMAND": "add"}, codes: code},
		{name: "ADD without CNI_NETNS", env: environment{"CNI_NETNS": ""}, codes: code},
		{name: "ADD without CNI_CONTAINERID", env: environment{"CNI_CONTAINERID": ""}, codes: container},
		{name: "ADD without CNI_IFNAME", env: environment{"CNI_IFNAME": ""}, codes: code},
	}
	for _, name := range []string{"../x", "a/b", ".", "..", "a b", "a:b", strings.Repeat("a", 16)} {
		calls = append(calls, badCall{name: "CNI_IFNAME " + name, env: environment{"CNI_IFNAME": name}, codes: code})
	}
	for _, id := range []string{"..", "../../x", "a/b", "/etc/x", "-a", "a b", "é", "a\nb"} {
		calls = append(calls, badCall{name: "CNI_CONTAINERID " + id, env: environment{"CNI_CONTAINERID": id}, codes: container})
	}
	calls = append(calls, badCall{name: "DEL with CNI_CONTAINERID ../../x", env: environment{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "../../x"}, codes: container})
	if atLeast(s.newest(), "0.4.0") {
		calls = append(calls, badCall{name: "CHECK without CNI_NETNS", env: environment{"CNI_COMMAND": "CHECK", "CNI_NETNS": ""}, codes: code})
	}
	s.refuse(t, calls)
}

func testMissingNamespace(t *testing.T, s *suite) {
	s.refuse(t, []badCall{
		{name: "no such file", env: environment{"CNI_NETNS": "/run/netns/there-is-no-such-namespace"}},
		{name: "a file that is no namespace", env: environment{"CNI_NETNS": "/etc/passwd"}},
		{name: "a directory", env: environment{"CNI_NETNS": "/etc"}},
	})
}

func testInvalidConfig(t *testing.T, s *suite) {
	code := []uint{types.ErrDecodingFailure, types.ErrInvalidNetworkConfig}
	valid := s.mustConfig(t, 0, s.newest(), nil)
	calls := []badCall{
		{name: "nothing", stdin: []byte{}, codes: code},
		{name: "no JSON", stdin: []byte("hello"), codes: code},
		{name: "cut off", stdin: valid[:len(valid)/2], codes: code},
		{name: "an array", stdin: []byte("[]"), codes: code},
		{name: "null", stdin: []byte("null"), codes: code},
		{name: "a string", stdin: []byte(`"x"`), codes: code},
		{name: "cniVersion that is a number", stdin: []byte(`{"cniVersion":1,"name":"n","type":"t"}`), codes: code},
		{name: "bytes that are no text", stdin: []byte("\x00\xff\xfe"), codes: code},
		{name: "deep nesting", stdin: bytes.Repeat([]byte(`{"a":`), 100_000), codes: code},
		{name: "a network name with slashes", stdin: s.mustConfig(t, 0, s.newest(), map[string]any{"name": "../../etc"}), codes: code},
		{name: "an empty network name", stdin: s.mustConfig(t, 0, s.newest(), map[string]any{"name": ""}), codes: code},
	}
	s.refuse(t, calls)
}

func testUnknownVersion(t *testing.T, s *suite) {
	code := []uint{types.ErrIncompatibleCNIVersion}
	var calls []badCall
	for _, v := range []string{"9.9.9", "0.0.1", "1.1.1"} {
		calls = append(calls, badCall{name: v, stdin: s.mustConfig(t, 0, v, nil), codes: code})
	}
	calls = append(calls, badCall{
		name: "not a version", stdin: s.mustConfig(t, 0, "one", nil), codes: append(code, types.ErrDecodingFailure),
	})
	s.refuse(t, calls)
}

func testHugeInput(t *testing.T, s *suite) {
	const size = 8 << 20
	s.refuse(t, []badCall{{name: "8 MiB that are no JSON", stdin: bytes.Repeat([]byte("x"), size)}})

	t.Run("8 MiB of spaces before the configuration", func(t *testing.T) {
		a := s.eth0(t)
		stdin := append(bytes.Repeat([]byte(" "), size), s.mustConfig(t, 0, s.newest(), nil)...)
		out, err := s.execute(t.Context(), 0, stdin, a.environment("ADD"))
		if err != nil {
			t.Fatal(err)
		}
		_, present := a.box.interfaceNamed(t, "eth0")
		if out.exit == 0 {
			if err := conforms(out.stdout, s.newest(), a.box.path); err != nil || !present {
				t.Errorf("ADD succeeded, but eth0 is present: %v; result: %v", present, err)
			}
			return
		}
		if _, err := refusalOf(out); err != nil || present {
			t.Errorf("ADD was refused, but eth0 is present: %v; refusal: %v", present, err)
		}
	})
}
