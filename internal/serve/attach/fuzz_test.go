package attach

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/world"
)

// S7: whatever a runtime sends, files appear in the folder only, under names that
// Fairlead gives, and a DEL takes them away again.
func FuzzRequest(f *testing.F) {
	n := start(f, options{norun: true, edit: func(c *Config) { c.PodTimeout = time.Millisecond }})
	f.Add("abc", "eth0", "/run/netns/x", "", "", "")
	f.Add("../../etc/cron.d/x", "../../eth0", "/run/netns/../../../etc/passwd", "ns", "p", "")
	f.Add("a", "%n", "/proc/self/ns/net", "", "", "../default")
	f.Add("a", "e_t_h", "/x", "", "", "default")
	f.Fuzz(func(t *testing.T, container, ifname, netns, namespace, name, subnet string) {
		r := Request{ContainerID: container, Interface: ifname, Netns: netns, Pod: world.Owner{Namespace: namespace, Name: name}, Standalone: true, Subnet: subnet}
		_, addErr := n.Add(t.Context(), r)
		around, err := os.ReadDir(filepath.Dir(n.dir))
		if err != nil || len(around) != 1 {
			t.Fatalf("around the folder: %v, %v", around, err)
		}
		inside, err := os.ReadDir(n.dir)
		if err != nil {
			t.Fatal(err)
		}
		live := 0
		for _, e := range inside {
			stem, suffix := splitSuffix(e.Name())
			if _, _, err := parseStem(stem); err != nil || !e.Type().IsRegular() {
				t.Errorf("file %q: %v", e.Name(), err)
			}
			if suffix == suffixLive {
				live++
			}
			if suffix == suffixGone {
				_ = os.Remove(filepath.Join(n.dir, e.Name()))
			}
		}
		if (addErr == nil) != (live == 1) {
			t.Errorf("error %v with %d records", addErr, live)
		}
		if err := n.Del(t.Context(), container, ifname); err != nil && addErr == nil {
			t.Errorf("DEL: %v", err)
		}
		if addErr != nil && (strings.Contains(addErr.Error(), "\n") || len(addErr.Error()) > 20000) {
			t.Errorf("message of %d bytes: %.200s", len(addErr.Error()), addErr)
		}
		n.pool.rested()
		n.mu.Lock()
		n.leaving = nil
		n.mu.Unlock()
	})
}
