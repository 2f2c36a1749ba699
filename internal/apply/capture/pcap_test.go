package capture

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// However the bytes come, and wherever they end, what is passed on is whole.
func TestWhole(t *testing.T) {
	file := appendHeader(nil, 100)
	ends := map[int]bool{0: true, len(file): true}
	for _, n := range []int{0, 1, 60, 100} {
		file = appendRecord(file, time.Unix(1, 2), n, 2*n)
		file = append(file, make([]byte, n)...)
		ends[len(file)] = true
	}
	for step := 1; step <= len(file); step++ {
		var b bytes.Buffer
		w := &Whole{W: &b}
		for at := 0; at < len(file); at += step {
			n, err := w.Write(file[at:min(at+step, len(file))])
			if err != nil || n == 0 {
				t.Fatal(n, err)
			}
			if !ends[b.Len()] {
				t.Fatalf("%d bytes are no whole file", b.Len())
			}
		}
		if !bytes.Equal(b.Bytes(), file) {
			t.Fatalf("in steps of %d, %d of %d bytes were passed on", step, b.Len(), len(file))
		}
	}
	// Nothing is kept for a length that cannot be.
	broken := appendRecord(appendHeader(nil, 100), time.Unix(1, 2), MaxSnap+1, 1)
	if _, err := (&Whole{W: &bytes.Buffer{}}).Write(broken); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a broken file: %v", err)
	}
}
