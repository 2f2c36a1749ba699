package conformance

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fault is one way in which a plugin can be wrong, and the cases that must notice.
type fault struct {
	fails []string
	// before may answer a call itself; after may spoil the answer. Either may be nil.
	before func(*wrappedCall) (answered bool)
	after  func(*wrappedCall)
}

// TestSuiteNotices runs the suite on a plugin with one fault at a time: the
// reference plugin, lifted to 1.1.0 and spoiled. A case that no fault can make fail
// would test nothing.
func TestSuiteNotices(t *testing.T) {
	requireReference(t)
	NewNode(t) // skips without root
	noticed := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(faults())) {
		fails := faults()[name].fails
		for _, c := range fails {
			noticed[c] = true
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, failed := runWrapped(t, name, fails)
			if !failed {
				t.Fatalf("the suite passed:\n%s", out)
			}
			for _, c := range fails {
				if !strings.Contains(out, "--- FAIL: TestPlugin/"+strings.ReplaceAll(c, " ", "_")+" ") {
					t.Errorf("the case %q passed:\n%s", c, out)
				}
			}
		})
	}
	for _, c := range Cases() {
		if !noticed[c] {
			t.Errorf("no fault makes the case %q fail", c)
		}
	}
	t.Run("no fault", func(t *testing.T) {
		t.Parallel()
		out, failed := runWrapped(t, "", Cases())
		if failed || strings.Contains(out, "--- SKIP") {
			t.Errorf("the plugin without a fault does not pass every case:\n%s", out)
		}
	})
}

// runWrapped runs cases on the wrapped plugin in a process of its own.
func runWrapped(t *testing.T, fault string, cases []string) (out string, failed bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	list := filepath.Join(dir, "conflist")
	if err := os.Symlink(self, filepath.Join(dir, wrapperName)); err != nil {
		t.Fatal(err)
	}
	conf := referenceTargets()["reference plugins with IPv4 and IPv6"].Conflist
	if err := os.WriteFile(list, conf, 0o600); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range cases {
		names = append(names, regexp.QuoteMeta(strings.ReplaceAll(c, " ", "_")))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.v", "-test.run", "^TestPlugin$/^("+strings.Join(names, "|")+")$",
		"-plugin-dir", dir+":"+referenceDir, "-conflist", list)
	cmd.Env = append(os.Environ(), faultVariable+"="+fault)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(text), err != nil
}

// faults lists what can be wrong, by name.
func faults() map[string]fault {
	return map[string]fault{
		"VERSION contradicts itself": {
			fails: []string{"VERSION answers and lists versions"},
			after: spoil("VERSION", func(c *wrappedCall) { c.edit("cniVersion", "7.0.0") }),
		},
		"results have another cniVersion": {
			fails: []string{"ADD result is what its cniVersion demands"},
			after: spoil("ADD", func(c *wrappedCall) { c.edit("cniVersion", "0.3.1") }),
		},
		"the result has another address than the interface": {
			fails: []string{"ADD result matches the namespace", "Parallel ADDs get distinct addresses"},
			after: spoil("ADD", func(c *wrappedCall) {
				c.out = regexp.MustCompile(`10\.93\.7\.\d+/24`).ReplaceAll(c.out, []byte("10.93.7.250/24"))
			}),
		},
		"containers are cut off": {
			fails: []string{"Containers on one node reach each other", "The node reaches its containers"},
			after: spoil("ADD", func(*wrappedCall) { setBridgeDown() }),
		},
		"a second ADD is answered with another address": {
			fails: []string{"ADD twice gives no second address"},
			after: spoil("ADD", func(c *wrappedCall) {
				if c.exit != 0 {
					c.out, c.exit = []byte(`{"cniVersion":"1.1.0","ips":[{"address":"10.93.7.251/24"}]}`), 0
				}
			}),
		},
		"a container is accepted once": {
			fails: []string{"ADD after DEL works again"},
			before: answer("ADD", func(c *wrappedCall) bool {
				f, err := os.OpenFile("/run/once-"+os.Getenv("CNI_CONTAINERID"), os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return c.refuse("it was here before")
				}
				f.Close()
				return false
			}),
		},
		"DEL of net1 takes eth0 with it": {
			fails: []string{"Two interfaces in one container are independent"},
			after: spoil("DEL", func(c *wrappedCall) {
				if os.Getenv("CNI_IFNAME") == "net1" {
					c.real("CNI_IFNAME=eth0")
				}
			}),
		},
		"DEL does nothing": {
			fails:  []string{"DEL removes the interface and releases the address"},
			before: answer("DEL", func(*wrappedCall) bool { return true }),
		},
		"DEL keeps the address": {
			fails: []string{
				"DEL removes the interface and releases the address", "DEL succeeds without CNI_NETNS",
				"DEL succeeds when the namespace is gone", "Parallel ADDs get distinct addresses",
			},
			before: answer("DEL", func(c *wrappedCall) bool {
				held := c.held()
				c.real()
				for path, owner := range held {
					_ = os.WriteFile(path, []byte(owner), 0o600)
				}
				return true
			}),
		},
		"DEL wants to know the container": {
			fails: []string{"DEL twice succeeds", "DEL without ADD succeeds"},
			before: answer("DEL", func(c *wrappedCall) bool {
				for _, owner := range c.held() {
					if strings.HasPrefix(owner, os.Getenv("CNI_CONTAINERID")+"\r\n") {
						return false
					}
				}
				return c.refuse("unknown container")
			}),
		},
		"DEL wants the namespace": {
			fails: []string{"DEL succeeds without CNI_NETNS", "DEL succeeds when the namespace is gone"},
			before: answer("DEL", func(c *wrappedCall) bool {
				_, err := os.Stat(os.Getenv("CNI_NETNS"))
				return err != nil && c.refuse("no namespace")
			}),
		},
		"DEL releases all addresses": {
			fails: []string{"DEL leaves other containers alone"},
			after: spoil("DEL", func(c *wrappedCall) { c.collect(nil) }),
		},
		"CHECK always fails": {
			fails:  []string{"CHECK succeeds after ADD"},
			before: answer("CHECK", func(c *wrappedCall) bool { return c.refuse("never mind") }),
		},
		"CHECK always succeeds": {
			fails: []string{
				"CHECK notices a missing interface", "CHECK notices a missing address",
				"CHECK notices a missing route", "CHECK notices a prevResult with another address",
			},
			before: answer("CHECK", func(*wrappedCall) bool { return true }),
		},
		"errors have exit status 0": {
			fails: []string{"Invalid environment is refused with code 4", "A namespace that does not exist is refused", "An unknown cniVersion is refused with code 1"},
			after: func(c *wrappedCall) { c.exit = 0 },
		},
		"errors are text": {
			fails: []string{"Invalid configuration is refused with code 6 or 7", "A namespace that does not exist is refused"},
			after: func(c *wrappedCall) {
				if c.exit != 0 {
					c.out = []byte("that went wrong\n")
				}
			},
		},
		"every container id is accepted": {
			fails: []string{"Invalid environment is refused with code 4"},
			before: answer("ADD", func(c *wrappedCall) bool {
				c.real("CNI_CONTAINERID=fixed" + strings.Trim(os.Getenv("CNI_CONTAINERID"), "./- \n"))
				return true
			}),
		},
		"every version is accepted": {
			fails:  []string{"An unknown cniVersion is refused with code 1"},
			before: func(c *wrappedCall) bool { c.anyVersion = true; return false },
		},
		"large input kills it": {
			fails: []string{"Huge standard input is survived"},
			before: func(c *wrappedCall) bool {
				if len(c.config) > 1<<20 {
					_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				}
				return false
			},
		},
		"STATUS fails": {
			fails:  []string{"STATUS succeeds on a working node"},
			before: answer("STATUS", func(c *wrappedCall) bool { return c.refuse("not today") }),
		},
		"GC does nothing": {
			fails: []string{
				"GC removes what the list does not name and keeps what it names",
				"GC with an empty list removes every container that is gone",
			},
			before: answer("GC", func(*wrappedCall) bool { return true }),
		},
		"GC removes everything": {
			fails:  []string{"GC removes what the list does not name and keeps what it names"},
			before: answer("GC", func(c *wrappedCall) bool { c.collect(nil); return true }),
		},
	}
}

// spoil limits a change of the answer to one command.
func spoil(command string, change func(*wrappedCall)) func(*wrappedCall) {
	return func(c *wrappedCall) {
		if os.Getenv("CNI_COMMAND") == command {
			change(c)
		}
	}
}

// answer limits an answer to one command.
func answer(command string, reply func(*wrappedCall) bool) func(*wrappedCall) bool {
	return func(c *wrappedCall) bool { return os.Getenv("CNI_COMMAND") == command && reply(c) }
}

func setBridgeDown() {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return
	}
	defer handle.Close()
	if bridge, err := handle.LinkByName("cnc0"); err == nil {
		_ = handle.LinkSetDown(bridge)
	}
}
