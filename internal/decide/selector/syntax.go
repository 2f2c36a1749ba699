package selector

import (
	"errors"
	"fmt"
	"strings"
)

// The limits of the API for label keys and values
// (k8s.io/apimachinery/pkg/util/validation, "Labels and Selectors").
const (
	maxName   = 63
	maxPrefix = 253
)

// checkKey accepts [prefix/]name.
func checkKey(key string) error {
	name := key
	if prefix, rest, has := strings.Cut(key, "/"); has {
		if !isSubdomain(prefix) {
			return fmt.Errorf("label key %q: the part before / must be a DNS subdomain of at most %d characters", shorten(key), maxPrefix)
		}
		name = rest
	}
	if name == "" {
		return errors.New("label key without a name")
	}
	if !isName(name) {
		return fmt.Errorf("label key %q: a name has at most %d letters, digits, '-', '_', '.' and begins and ends with a letter or digit", shorten(key), maxName)
	}
	return nil
}

// checkValue accepts the empty value and names.
func checkValue(value string) error {
	if value == "" || isName(value) {
		return nil
	}
	return fmt.Errorf("label value %q: a value is empty or has at most %d letters, digits, '-', '_', '.' and begins and ends with a letter or digit", shorten(value), maxName)
}

func isName(s string) bool {
	if s == "" || len(s) > maxName || !isAlnum(s[0]) || !isAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// isSubdomain accepts RFC 1123 labels, lower case, joined by dots.
func isSubdomain(s string) bool {
	if s == "" || len(s) > maxPrefix {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || !isLowerAlnum(label[0]) || !isLowerAlnum(label[len(label)-1]) {
			return false
		}
		for i := range len(label) {
			if !isLowerAlnum(label[i]) && label[i] != '-' {
				return false
			}
		}
	}
	return true
}

func isAlnum(c byte) bool      { return isLowerAlnum(c) || c >= 'A' && c <= 'Z' }
func isLowerAlnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// shorten keeps a hostile megabyte out of a message.
func shorten(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}
