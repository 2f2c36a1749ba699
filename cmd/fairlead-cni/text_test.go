package main

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "a", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é日😀\u2028", "\xff\xfe", "\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if want := strings.Map(func(r rune) rune { return r }, s); got != want {
			t.Errorf("%q decodes to %q, want %q", s, got, want)
		}
		if !utf8.Valid(appendString(nil, s)) {
			t.Errorf("%q is not written in UTF-8", s)
		}
	})
}

func FuzzAppendBase64(f *testing.F) {
	for n := range 8 {
		f.Add([]byte("\xff\x00abcde")[:n])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := string(appendBase64(nil, b)), base64.StdEncoding.EncodeToString(b); got != want {
			t.Errorf("%x: got %s, want %s", b, got, want)
		}
	})
}

func TestVersionOf(t *testing.T) {
	tests := []struct{ name, config, want string }{
		{"empty", "", "1.1.0"},
		{"first key", `{"cniVersion":"0.3.1","name":"n"}`, "0.3.1"},
		{"last key, spaces", "{ \"name\" : \"n\" , \"cniVersion\"\n:\t\"0.2.0\" }", "0.2.0"},
		{"only in a nested object", `{"a":{"cniVersion":"0.3.1"}}`, "1.1.0"},
		{"nested before", `{"a":[{"cniVersion":"0.3.1"}],"cniVersion":"1.0.0"}`, "1.0.0"},
		{"as a value", `{"name":"cniVersion","type":"0.4.0"}`, "1.1.0"},
		{"behind an escaped quote", `{"name":"a\",\"cniVersion\":\"0.2.0","cniVersion":"0.4.0"}`, "0.4.0"},
		{"unknown version", `{"cniVersion":"0.1.0"}`, "1.1.0"},
		{"a number", `{"cniVersion":1,"name":"0.4.0"}`, "1.1.0"},
		{"cut off", `{"cniVersion":"0.4.`, "1.1.0"},
		{"cut off in an escape", `{"cniVersion\`, "1.1.0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := versionOf([]byte(tt.config)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Whatever valid JSON holds, the scanner finds what a parser finds.
func FuzzVersionOf(f *testing.F) {
	f.Add("n", "0.4.0", `{"cniVersion":"0.2.0"}`)
	f.Add(`a","cniVersion":"0.2.0`, "1.0.0", `["cniVersion"]`)
	f.Fuzz(func(t *testing.T, name, version, extra string) {
		if !json.Valid([]byte(extra)) {
			extra = "{}"
		}
		n, err := json.Marshal(name)
		if err != nil {
			t.Skip()
		}
		v, err := json.Marshal(version)
		if err != nil {
			t.Skip()
		}
		got := versionOf([]byte(`{"name":` + string(n) + `,"x":` + extra + `,"cniVersion":` + string(v) + `}`))
		want := "1.1.0"
		for _, known := range supported() {
			if version == known {
				want = known
			}
		}
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// Bytes that arrive one by one are understood as those that arrive at once.
func FuzzParseAnswer(f *testing.F) {
	f.Add("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nFairlead-Cni-Exit: 1\r\n\r\n{}")
	f.Add("HTTP/1.1 500 Oops\r\n\r\n")
	f.Add("\r\n\r\n")
	f.Fuzz(func(t *testing.T, raw string) {
		whole, done, problem := parseAnswer([]byte(raw))
		if done && problem != "" {
			t.Fatalf("done with a problem: %s", problem)
		}
		for n := range len(raw) {
			part, partDone, partProblem := parseAnswer([]byte(raw[:n]))
			if partProblem != "" && problem == "" {
				t.Fatalf("problem %q after %d bytes, none in the end", partProblem, n)
			}
			if partDone && done && (string(part.body) != string(whole.body) || part.exit != whole.exit) {
				t.Fatalf("done after %d bytes with another answer", n)
			}
		}
	})
}

func TestDecimal(t *testing.T) {
	for _, n := range []int{0, 1, 9, 10, 1048576, 999999999} {
		if got := parseDecimal(decimal(n)); got != n {
			t.Errorf("%d became %d", n, got)
		}
	}
	if got := decimal(-42); got != "-42" {
		t.Errorf("got %s, want -42", got)
	}
	for _, s := range []string{"", "-1", "1 ", "0x1", "1234567890"} {
		if got := parseDecimal(s); got != -1 {
			t.Errorf("%q became %d, want -1", s, got)
		}
	}
}
