package attach

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/google/renameio/v2"
)

// maxRecord bounds what is read of one file, in bytes.
const maxRecord = 64 << 10

// directory is the folder of records. Nothing outside of it is ever opened: every
// access goes through an os.Root.
type directory struct {
	path string
	root *os.Root
	self *os.File // the folder itself, to fsync it

	syncing sync.Mutex // held during an fsync
	mu      sync.Mutex
	next    *commit // joined by whoever comes while an fsync is under way
}

// commit is one fsync of the folder that several calls share.
type commit struct {
	done chan struct{}
	err  error
}

func openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	self, err := root.Open(".")
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	info, err := self.Stat()
	if err == nil && info.Mode().Perm() != 0o700 {
		err = self.Chmod(0o700)
	}
	if err != nil && !isReadOnly(err) {
		_ = errors.Join(self.Close(), root.Close())
		return nil, err
	}
	return &directory{path: path, root: root, self: self}, nil
}

// sync returns once everything that happened in the folder before is durable. Calls
// that come while an fsync is under way share the next one: hundreds of ADDs at once
// cost a few.
func (d *directory) sync() error {
	d.mu.Lock()
	c := d.next
	if c != nil {
		d.mu.Unlock()
		<-c.done
		return c.err
	}
	c = &commit{done: make(chan struct{})}
	d.next = c
	d.mu.Unlock()

	d.syncing.Lock()
	defer d.syncing.Unlock()
	d.mu.Lock()
	d.next = nil // who comes now might be too late for this one
	d.mu.Unlock()
	c.err = d.self.Sync()
	close(c.done)
	return c.err
}

func (d *directory) close() error { return errors.Join(d.self.Close(), d.root.Close()) }

// errNotDurable: the record is there, but might not survive a power loss.
var errNotDurable = errors.New("the folder cannot be synced")

// save writes a live record and returns when it is durable. After an error there is
// none, unless the error is errNotDurable.
func (d *directory) save(r *record) error {
	if err := r.check(recordVersion); err != nil {
		return err
	}
	data, err := r.encode()
	if err != nil {
		return err
	}
	f, err := renameio.NewPendingFile(r.stem()+suffixLive, renameio.WithRoot(d.root), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return err
	}
	if _, err = f.Write(append(data, '\n')); err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		return errors.Join(err, f.Cleanup())
	}
	if err := d.sync(); err != nil {
		return fmt.Errorf("%w: %w", errNotDurable, err)
	}
	return nil
}

// bury turns a file into a grave, durably. A file that is not there is buried.
func (d *directory) bury(stem, suffix string) error {
	err := d.root.Rename(stem+suffix, stem+suffixGone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return cmp.Or(err, d.sync())
}

// remove deletes a grave. Not durably: one that comes back after a power loss rests
// once more, and a live record with the same address wins over it.
func (d *directory) remove(stem string) error {
	if err := d.root.Remove(stem + suffixGone); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// torn is a file that could not be read.
type torn struct {
	name  string // as it is now
	lease Lease  // as the name tells; no addresses if it does not
	link  string
	err   error
}

// advice tells a person which pod it is, as far as the name says, and what to do.
func (t torn) advice(folder string) string {
	if len(t.lease.Addresses) == 0 {
		return fmt.Sprintf("the record cannot be used and was set aside in %s; its name does not tell the pod. A pod of this node without network must be deleted, so that it is made anew; remove the file then: %v", folder, oneLine(t.err))
	}
	return fmt.Sprintf("the record of the pod with %s (Subnet %s, link %s) cannot be used and was set aside in %s: the pod has no network. Delete the pod, so that it is made anew (kubectl get pods -A -o wide | grep -w %s); its addresses stay blocked until then: %v",
		join(t.lease.Addresses), t.lease.Subnet, t.link, folder, t.lease.Addresses[0], oneLine(t.err))
}

// contents of the folder, sorted by file name.
type contents struct {
	live []*record
	gone []grave
	torn []torn
}

// grave is a buried record.
type grave struct {
	stem  string
	id    string // of the attachment, if the content tells
	lease Lease
}

// load reads every file. Records that cannot be read are set aside; what a crash
// of a writer left behind is removed; files that are not ours are left alone.
func (d *directory) load() (contents, error) {
	entries, err := d.entries()
	if err != nil {
		return contents{}, err
	}
	var c contents
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.HasPrefix(name, ".flp") && e.Type().IsRegular():
			// The unfinished file of a writer that died. If it cannot be removed it
			// does no harm.
			_ = d.root.Remove(name)
		case strings.HasSuffix(name, suffixLive):
			r, err := d.read(strings.TrimSuffix(name, suffixLive), suffixLive)
			if errors.Is(err, errNewer) {
				return contents{}, fmt.Errorf("record %s/%s is %w; install that release again, or delete the pods first", d.path, name, err)
			}
			switch {
			case err == nil:
				c.live = append(c.live, r)
			case errors.As(err, new(*fs.PathError)) && !errors.Is(err, syscall.EIO):
				return contents{}, err // not the record's fault: try again later
			default:
				c.torn = append(c.torn, d.setAside(name, err))
			}
		case strings.HasSuffix(name, suffixGone):
			c.gone = append(c.gone, d.grave(name))
		case strings.HasSuffix(name, suffixTorn):
			c.torn = append(c.torn, describeTorn(name, errors.New("set aside by an earlier start")))
		}
	}
	return c, nil
}

func (d *directory) entries() ([]fs.DirEntry, error) {
	self, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	entries, err := self.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// read reads the record in a file whose name is its stem and the suffix.
func (d *directory) read(stem, suffix string) (*record, error) {
	f, err := d.openRegular(stem + suffix)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxRecord {
		return nil, fmt.Errorf("the file has more than %d bytes", maxRecord)
	}
	r, err := decodeRecord(data)
	if err == nil && r.stem() != stem {
		err = errors.New("the name and the content are of different attachments")
	}
	return r, err
}

// openRegular refuses what could block or lead elsewhere: pipes, devices, links.
func (d *directory) openRegular(name string) (*os.File, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file (%s)", info.Mode().Type())
	}
	return d.root.Open(name)
}

// setAside renames an unreadable record, so that a person can look at it and no
// later start reads it again. Where that fails it is reported all the same.
func (d *directory) setAside(name string, cause error) torn {
	aside := strings.TrimSuffix(name, suffixLive) + suffixTorn
	if err := d.root.Rename(name, aside); err != nil {
		t := describeTorn(name, cause)
		t.err = errors.Join(cause, err)
		return t
	}
	return describeTorn(aside, cause)
}

func describeTorn(name string, cause error) torn {
	t := torn{name: name, err: cause}
	stem := strings.TrimSuffix(strings.TrimSuffix(name, suffixTorn), suffixLive)
	if link, lease, err := parseStem(stem); err == nil {
		t.link, t.lease = link, lease
	} else {
		t.err = errors.Join(cause, err)
	}
	return t
}

// grave reads a buried record as far as that goes: its content says the Subnet and
// the owner, its name at least the addresses.
func (d *directory) grave(name string) grave {
	g := grave{stem: strings.TrimSuffix(name, suffixGone)}
	if r, err := d.read(g.stem, suffixGone); err == nil {
		g.id, g.lease = r.ID, r.lease()
		return g
	}
	if _, lease, err := parseStem(g.stem); err == nil {
		g.lease = lease
	}
	return g
}

func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }
