package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-sdn/fairlead/lab/process"
)

func TestTail(t *testing.T) {
	for _, tc := range []struct{ name, log, tail, last string }{
		{"empty", "\n", "(its log is empty)", ""},
		{"few lines", "a\n\nb\n", "a\nb", "b"},
		{"many lines", "1\n2\n3\n4\n5\n", "2\n3\n4\n5", "5"},
		{"long", strings.Repeat("x", 100<<10) + "\nend\n", strings.Repeat("x", 1024) + "…\nend", "end"},
		{
			"a crash", "starts\npanic: write wal: no space left on device\n\ngoroutine 1 [running]:\nmain.main()\n\t/x.go:1\n\t/y.go:2\n",
			"starts\npanic: write wal: no space left on device", "panic: write wal: no space left on device",
		},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(tc.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := process.Tail(path); got != tc.tail {
			t.Errorf("%s: tail %.200q, want %.200q", tc.name, got, tc.tail)
		}
		if got := process.LastLine(path); got != tc.last {
			t.Errorf("%s: last line %q, want %q", tc.name, got, tc.last)
		}
	}
	if got := process.Tail("/does/not/exist"); got != "(its log is empty)" {
		t.Errorf("no file: %q", got)
	}
}
