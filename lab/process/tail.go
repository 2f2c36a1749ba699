package process

import (
	"io"
	"os"
	"strings"
)

const (
	tailBytes = 2048
	tailLines = 4
)

// Tail is the end of a log for an error's text: its last few lines, or that there
// are none.
func Tail(path string) string {
	const nothing = "(its log is empty)"
	f, err := os.Open(path)
	if err != nil {
		return nothing
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
			return nothing
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, tailBytes))
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if err != nil || lines[0] == "" {
		return nothing
	}
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
