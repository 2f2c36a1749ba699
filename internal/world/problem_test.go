package world_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

func TestBriefProblem(t *testing.T) {
	long := strings.Repeat("é", 1<<19) + "\xff"
	p := world.Problem{Kind: world.KindVPC, Key: world.Key{Namespace: long, Name: long}, Field: long, Reason: "R", Message: "x" + long}.Brief()
	for _, text := range []string{p.Key.Namespace, p.Key.Name, p.Field, p.Message} {
		if len(text) > 1100 || !utf8.ValidString(text) {
			t.Errorf("%d bytes, valid %t", len(text), utf8.ValidString(text))
		}
	}
	short := world.Problem{Kind: world.KindPod, Key: world.Key{Namespace: "a", Name: "b"}, Field: "f", Reason: "R", Message: "m"}
	if got := short.Brief(); got != short {
		t.Errorf("got %v, want %v", got, short)
	}
}
