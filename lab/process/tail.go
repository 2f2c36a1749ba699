package process

import (
	"io"
	"os"
	"slices"
	"strings"
)

const (
	tailBytes = 64 << 10
	tailLines = 4
	// maxLine is how much of a line is told, in bytes.
	maxLine = 1024
)

// Tail is the end of a log for an error's text: its last few lines, or that there
// are none. Of a program that crashed it is what it said before the list of its
// goroutines.
func Tail(path string) string {
	lines := lastLines(path)
	if len(lines) == 0 {
		return "(its log is empty)"
	}
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// LastLine is the last line of a log, empty if there is none.
func LastLine(path string) string {
	lines := lastLines(path)
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

func lastLines(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
			return nil
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, tailBytes))
	if err != nil {
		return nil
	}
	lines := beforeTrace(strings.FieldsFunc(string(raw), func(r rune) bool { return r == '\n' || r == '\r' }))
	for i, l := range lines {
		if len(l) > maxLine {
			lines[i] = strings.ToValidUTF8(l[:maxLine], "") + "…"
		}
	}
	return lines
}

// beforeTrace cuts off the stack trace of a Go program that has crashed: it begins
// with the line of the goroutine that did, behind the reason.
func beforeTrace(lines []string) []string {
	crashed := slices.IndexFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ")
	})
	if crashed < 0 {
		return lines
	}
	trace := slices.IndexFunc(lines[crashed:], func(l string) bool { return strings.HasPrefix(l, "goroutine ") })
	if trace < 0 {
		return lines
	}
	return lines[:crashed+trace]
}
