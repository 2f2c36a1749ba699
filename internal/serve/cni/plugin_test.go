package cni

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

// network is a runtime: libcni, the real plugin, and a server that it talks to.
type network struct {
	*libcni.CNIConfig
	b    *backend
	list *libcni.NetworkConfigList
	end  func() error
}

func newNetwork(t testing.TB, version string) *network {
	t.Helper()
	dir := shortDir(t)
	socket := filepath.Join(dir, "s")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-X main.socketPath="+socket, "-o", filepath.Join(dir, "fairlead-cni"), "github.com/fairlead-sdn/fairlead/cmd/fairlead-cni")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":"fairlead","plugins":[{"type":"fairlead-cni"}]}`, version))
	if err != nil {
		t.Fatal(err)
	}
	// Without an exec of its own libcni makes one at the first call, in a race.
	run := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	n := &network{CNIConfig: libcni.NewCNIConfigWithCacheDir([]string{dir}, filepath.Join(dir, "cache"), run), b: newBackend(), list: list}
	n.end = serve(t, socket, n.b, 0)
	return n
}

func runtimeConf(container string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: container, NetNS: "/run/netns/" + container, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "ns"}, {"K8S_POD_NAME", container}, {"K8S_POD_UID", "u"}},
	}
}

// Every version of CNI, through the real plugin.
func TestThroughThePlugin(t *testing.T) {
	for _, version := range cniapi.Versions() {
		t.Run(version, func(t *testing.T) {
			n := newNetwork(t, version)
			ctx, rt := t.Context(), runtimeConf("abc")
			added, err := n.AddNetworkList(ctx, n.list, rt)
			if err != nil {
				t.Fatal(err)
			}
			r, err := types100.NewResultFromResult(added)
			if err != nil {
				t.Fatal(err)
			}
			if added.Version() != version || len(r.IPs) != 2 || r.IPs[0].Address.String() != "10.128.0.5/32" || r.IPs[1].Address.String() != "fd00:10::5/128" {
				t.Errorf("version %s: %+v", added.Version(), r)
			}
			if version >= "0.4.0" {
				if err := n.CheckNetworkList(ctx, n.list, rt); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
			if version >= "1.1.0" {
				if err := n.GetStatusNetworkList(ctx, n.list); err != nil {
					t.Errorf("STATUS: %v", err)
				}
				if err := n.GCNetworkList(ctx, n.list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "abc", IfName: "eth0"}}}); err != nil {
					t.Errorf("GC: %v", err)
				}
				if want := []attach.Key{{ContainerID: "abc", Interface: "eth0"}}; !slices.Equal(n.b.valid, want) || n.b.network != "fairlead" {
					t.Errorf("GC of %s: %v", n.b.network, n.b.valid)
				}
			}
			for range 2 {
				if err := n.DelNetworkList(ctx, n.list, rt); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			if len(n.b.added) != 0 {
				t.Errorf("left: %v", n.b.added)
			}
		})
	}
}

func TestErrorsThroughThePlugin(t *testing.T) {
	n := newNetwork(t, "1.1.0")
	n.b.err = &attach.Error{Message: "add abc/eth0", Err: errors.New("subnet full: 13 of 13")}
	_, err := n.AddNetworkList(t.Context(), n.list, runtimeConf("abc"))
	e := (*types.Error)(nil)
	if !errors.As(err, &e) || e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, "subnet full: 13 of 13") {
		t.Errorf("got %v", err)
	}
	n.b.ready = errors.New("not read yet")
	if err := n.GetStatusNetworkList(t.Context(), n.list); !errors.As(err, &e) || e.Code != types.ErrPluginNotAvailable {
		t.Errorf("got %v", err)
	}
	if err := n.end(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.AddNetworkList(t.Context(), n.list, runtimeConf("abc")); !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
		t.Errorf("without an agent: %v", err)
	}
}

func TestManyThroughThePlugin(t *testing.T) {
	n := newNetwork(t, "1.1.0")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			rt := runtimeConf(fmt.Sprintf("c%d", i))
			if _, err := n.AddNetworkList(t.Context(), n.list, rt); err != nil {
				t.Errorf("ADD: %v", err)
			}
			if err := n.DelNetworkList(t.Context(), n.list, rt); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
	wg.Wait()
	if len(n.b.added) != 0 {
		t.Errorf("left: %v", n.b.added)
	}
}

// What a call costs without the work: net/http, parsing, the result.
func BenchmarkServe(b *testing.B) {
	socket := filepath.Join(shortDir(b), "s")
	serve(b, socket, newBackend(), 0)
	body := `{"command":"ADD","containerID":"a","ifName":"eth0","netns":"/x","args":"` + podArgs + `","config":"eyJjbmlWZXJzaW9uIjoiMS4xLjAiLCJuYW1lIjoibiIsInR5cGUiOiJ0In0="}`
	for b.Loop() {
		if resp, answer := exchange(b, socket, body); resp.Header.Get(cniapi.HeaderExit) != "0" {
			b.Fatal(answer)
		}
	}
}
