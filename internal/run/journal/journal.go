package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// Entry is one pass of the reconcile loop, or one thing that happened to it from
// outside.
type Entry struct {
	Time     time.Time      `json:"time"`
	Revision uint64         `json:"revision,omitempty"`
	Position world.Position `json:"position,omitempty"`
	// Objects of the intent that changed, for people.
	Objects []string `json:"objects,omitempty"`
	// Changes made in the kernel, in order.
	Changes []string `json:"changes,omitempty"`
	// Failed objects with their reasons.
	Failed []string `json:"failed,omitempty"`
	// Foreign is what somebody else changed.
	Foreign []apply.Foreign `json:"foreign,omitempty"`
	// Note is an event of the agent itself: "started", "datastore lost".
	Note string `json:"note,omitempty"`
	// Duration of the pass.
	Duration time.Duration `json:"duration,omitempty"`
}

// Bounds of the journal.
const (
	// fileSize is how large one of the two files grows, in bytes.
	fileSize = 1 << 20
	// listLength is how many objects or changes one entry lists; more are counted.
	listLength = 200
)

// Journal is safe for concurrent use.
type Journal struct {
	path string

	mu   sync.Mutex
	file *os.File
	size int64
}

// Open opens the journal in a directory, which it creates with mode 0700.
func Open(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the journal's directory: %w", err)
	}
	j := &Journal{path: filepath.Join(dir, "journal.jsonl")}
	if err := j.open(); err != nil {
		return nil, err
	}
	return j, nil
}

func (j *Journal) open() error {
	f, err := os.OpenFile(j.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open the journal: %w", err), f.Close())
	}
	size := info.Size()
	if torn, err := endsTorn(f, size); err != nil || torn {
		// The next entry must not continue a torn line.
		n, werr := f.WriteString("\n")
		size += int64(n)
		if err := errors.Join(err, werr); err != nil {
			return errors.Join(fmt.Errorf("mend the journal: %w", err), f.Close())
		}
	}
	j.file, j.size = f, size
	return nil
}

func endsTorn(f *os.File, size int64) (bool, error) {
	if size == 0 {
		return false, nil
	}
	var last [1]byte
	_, err := f.ReadAt(last[:], size-1)
	return last[0] != '\n', err
}

// Add appends an entry. Lists longer than 200 lines are cut, and the last line
// says by how much.
func (j *Journal) Add(e Entry) error {
	e.Objects, e.Changes, e.Failed = bound(e.Objects), bound(e.Changes), bound(e.Failed)
	if n := len(e.Foreign) - listLength; n > 0 {
		e.Foreign = append(e.Foreign[:listLength:listLength], apply.Foreign{Time: e.Foreign[listLength].Time, What: fmt.Sprintf("and %d more", n)})
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode a journal entry: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var rotated error
	if j.size > fileSize {
		rotated = j.rotate()
	}
	n, err := j.file.Write(append(line, '\n'))
	j.size += int64(n)
	if err != nil {
		err = fmt.Errorf("write to the journal: %w", err)
	}
	return errors.Join(rotated, err)
}

func bound(lines []string) []string {
	if len(lines) <= listLength {
		return lines
	}
	return append(lines[:listLength:listLength], fmt.Sprintf("and %d more", len(lines)-listLength))
}

// rotate begins a new file. Where that fails the old one is gone on with, and the next
// Add tries again.
func (j *Journal) rotate() error {
	// Nothing of the name is there if the try before got no further than this.
	if err := os.Rename(j.path, j.path+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("rotate the journal: %w", err)
	}
	old := j.file
	if err := j.open(); err != nil {
		return err
	}
	return old.Close()
}

// Entries returns what is left of the entries since a time, oldest first.
func (j *Journal) Entries(since time.Time) ([]Entry, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Entry
	for _, path := range []string{j.path + ".1", j.path} {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the journal: %w", err)
		}
		lines := bufio.NewScanner(bytes.NewReader(raw))
		lines.Buffer(nil, len(raw)+1)
		for lines.Scan() {
			var e Entry
			if json.Unmarshal(lines.Bytes(), &e) == nil && !e.Time.Before(since) && !e.Time.IsZero() {
				out = append(out, e)
			}
		}
	}
	return out, nil
}

// Close closes the file.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.file.Close()
}
