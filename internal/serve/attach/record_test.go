package attach

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fairlead-sdn/fairlead/internal/claims"
	"github.com/fairlead-sdn/fairlead/internal/packet"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

func someRecord() *record {
	return &record{
		Attachment: world.Attachment{
			ID: "c0/eth0", ContainerID: "c0", Interface: "eth0", HostInterface: claims.PortName("c0", "eth0"),
			Netns: "/run/netns/n0", Pod: world.Owner{Namespace: "ns", Name: "p0", UID: "uid-0"}, VPC: "default", Subnet: "default",
			Addresses: addrs("10.128.0.1", "fd00:10::1"), MAC: packet.MAC{0x0a, 0x58, 10, 128, 0, 1},
		},
		Network: "fairlead", Created: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
	}
}

// The bytes are a contract with every later release.
func TestRecordFormat(t *testing.T) {
	got, err := someRecord().encode()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/record-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
		t.Error(diff)
	}
	back, err := decodeRecord(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(someRecord(), back, byAddr); diff != "" {
		t.Error(diff)
	}
}

// A11: whatever is missing or changed, a record is either read as it was written or
// not at all.
func TestDamagedRecordIsNeverBelieved(t *testing.T) {
	data, err := someRecord().encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(data) {
		if r, err := decodeRecord(data[:n]); err == nil {
			t.Fatalf("cut to %d of %d bytes, it was read as %+v", n, len(data), r)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		damaged := bytes.Clone(data)
		i := rapid.IntRange(0, len(data)-1).Draw(t, "byte")
		damaged[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		r, err := decodeRecord(damaged)
		if err == nil && cmp.Diff(someRecord(), r, byAddr) != "" {
			t.Fatalf("byte %d changed, it was read as %+v", i, r)
		}
	})
}

// A11, from the folder: the torn record is reported and set aside, its address is
// not given to anybody, and a DEL for its container frees it.
func TestTornRecord(t *testing.T) {
	o := options{pods: 2, subnets: []*world.Subnet{{Name: "default", VPC: "default", CIDRs: cidrs("10.1.0.0/30", "fd00::/126")}}}
	data, err := someRecord().encode()
	if err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut < len(data); cut += 7 {
		synctest.Test(t, func(t *testing.T) {
			n := start(t, o)
			torn := n.mustAdd(requestFor(0)).Addresses
			n.stop()
			name := filepath.Join(n.dir, n.files()[0])
			whole, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, whole[:min(cut, len(whole)-2)], 0o600); err != nil {
				t.Fatal(err)
			}
			n.reborn(o)
			if p := n.Problems(); len(p) != 1 || p[0].Reason != "RecordUnreadable" || !strings.Contains(p[0].Message, "the pod with "+torn[0].String()) || !strings.Contains(p[0].Message, "Delete the pod") {
				t.Errorf("problems: %v", p)
			}
			other := n.mustAdd(requestFor(1))
			if other.Addresses[0] == torn[0] || other.Addresses[1] == torn[1] {
				t.Fatalf("cut to %d: %v was given twice", cut, other.Addresses)
			}
			n.reborn(o) // it stays aside, and stays blocked
			if got := n.files(); !strings.HasSuffix(got[0]+got[1], ".torn") && !strings.Contains(got[0], ".torn") {
				t.Errorf("files: %v", got)
			}
			n.mustDel(requestFor(1))
			n.mustDel(requestFor(0))
			n.empty()
		})
	}
}

func TestRestoreOfADamagedFolder(t *testing.T) {
	write := func(t *testing.T, n *node, name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(n.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	encode := func(t *testing.T, r *record) []byte {
		t.Helper()
		data, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	variant := func(change func(*record)) *record {
		r := someRecord()
		change(r)
		r.HostInterface = claims.PortName(r.ContainerID, r.Interface)
		r.ID = Key{r.ContainerID, r.Interface}.ID()
		return r
	}
	for name, c := range map[string]struct {
		fill       func(*testing.T, *node)
		live       []string
		problems   int
		incomplete bool
	}{
		"a name that says nothing": {
			fill:     func(t *testing.T, n *node) { write(t, n, "flpgarbage.json", []byte("x")) },
			problems: 1, incomplete: true,
		},
		"a copy under another name": {
			fill: func(t *testing.T, n *node) {
				r := someRecord()
				write(t, n, r.stem()+".json", encode(t, r))
				write(t, n, "flpaaaaaaaaaaaa_default_10.128.0.9.json", encode(t, r))
			},
			live: []string{"c0/eth0"}, problems: 1,
		},
		"one interface twice: the later one holds": {
			fill: func(t *testing.T, n *node) {
				r := someRecord()
				write(t, n, r.stem()+".json", encode(t, r))
				r = variant(func(r *record) { r.Addresses = addrs("10.128.0.2"); r.Created = r.Created.Add(time.Hour) })
				write(t, n, r.stem()+".json", encode(t, r))
			},
			live: []string{"c0/eth0 10.128.0.2"}, problems: 1,
		},
		"one address twice: the earlier one holds": {
			fill: func(t *testing.T, n *node) {
				r := someRecord()
				write(t, n, r.stem()+".json", encode(t, r))
				r = variant(func(r *record) { r.ContainerID = "c1"; r.Created = r.Created.Add(time.Hour) })
				write(t, n, r.stem()+".json", encode(t, r))
			},
			live: []string{"c0/eth0"}, problems: 1,
		},
		"leftovers and strangers": {
			fill: func(t *testing.T, n *node) {
				write(t, n, ".flpabc_default_10.0.0.1.json123", []byte("{"))
				write(t, n, "README", []byte("hello"))
			},
		},
		"no regular file": {
			fill: func(t *testing.T, n *node) {
				if err := os.Symlink("/etc/passwd", filepath.Join(n.dir, someRecord().stem()+".json")); err != nil {
					t.Fatal(err)
				}
			},
			problems: 1,
		},
		"huge": {
			fill: func(t *testing.T, n *node) {
				write(t, n, someRecord().stem()+".json", bytes.Repeat([]byte(" "), 10<<20))
			},
			problems: 1,
		},
		"a grave and a live record with one address": {
			fill: func(t *testing.T, n *node) {
				r := someRecord()
				write(t, n, r.stem()+".json", encode(t, r))
				r = variant(func(r *record) { r.ContainerID = "c1" })
				write(t, n, r.stem()+".gone", encode(t, r))
			},
			live: []string{"c0/eth0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := options{}
				n := start(t, o)
				n.stop()
				c.fill(t, n)
				for range 2 { // the second start finds what the first one has set aside
					n.reborn(o)
					var live []string
					for _, a := range n.List() {
						live = append(live, a.ID)
					}
					if len(live) != len(c.live) || len(live) == 1 && !strings.HasPrefix(c.live[0], live[0]) {
						t.Errorf("got %v, want %v", live, c.live)
					}
					if len(c.live) == 1 && strings.Contains(c.live[0], " ") && !strings.HasSuffix(c.live[0], n.List()[0].Addresses[0].String()) {
						t.Errorf("got %v, want %v", n.List(), c.live)
					}
					if p := n.Problems(); len(p) != c.problems {
						t.Errorf("problems: %v", p)
					}
					if n.pool.held.Incomplete != c.incomplete {
						t.Errorf("incomplete: %v", n.pool.held.Incomplete)
					}
				}
			})
		})
	}
}

func TestRecordOfANewerRelease(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, someRecord().stem()+".json")
	// The sum is that of the inner object.
	inner := `{"version":2,"shiny":true}`
	if err := os.WriteFile(name, []byte(`{"sha256":"`+sumOf(inner)+`","record":`+inner+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := openDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if _, err := d.load(); err == nil || !strings.Contains(err.Error(), "written by a newer release") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(name); err != nil {
		t.Errorf("the record was moved: %v", err)
	}
}

func sumOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestStem(t *testing.T) {
	r := someRecord()
	link, lease, err := parseStem(r.stem())
	want := Lease{Subnet: "default", Owner: world.Owner{Name: "record/" + r.HostInterface}, Addresses: r.Addresses}
	if err != nil || link != r.HostInterface {
		t.Errorf("link %q, error %v", link, err)
	}
	if diff := cmp.Diff(want, lease, byAddr); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "flpx", "flpx_default", "flpx_default_", "flpx_default_10.0.0.01", "flpx_default_1.2.3.4_1.2.3.5", "flpx_default_fe80::1%eth0", "x_default_10.0.0.1", "flpx_UPPER_10.0.0.1", "flpx_default_::1_1.2.3.4"} {
		if _, l, err := parseStem(bad); err == nil {
			t.Errorf("%q was read as %v", bad, l)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	data, err := someRecord().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"sha256":"","record":{}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data)
		if err != nil {
			return
		}
		again, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeRecord(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, back, byAddr, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
	})
}
