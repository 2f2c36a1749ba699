package probe_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/lab/probe"
)

// loopback makes a network namespace with lo up and the given addresses on it.
func loopback(t *testing.T, addresses ...string) *os.File {
	t.Helper()
	ns, err := netspace.New()
	if err != nil {
		t.Skipf("network namespaces cannot be made here: %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := fabric.Prepare(ns, false); err != nil {
		t.Fatal(err)
	}
	var add []netip.Prefix
	for _, a := range addresses {
		add = append(add, netip.MustParsePrefix(a))
	}
	if err := fabric.Configure(ns, fabric.Interface{Name: "lo", Addresses: add}); err != nil {
		t.Fatal(err)
	}
	return ns
}

func serve(t *testing.T, ns *os.File, name string, ports ...probe.Port) {
	t.Helper()
	s, err := probe.Serve(ns, name, ports)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// patience is for a machine that is busy with other tests.
const patience = 20 * time.Second

func TestAsk(t *testing.T) {
	// Two addresses a family: the answer must come from the one that was asked.
	ns := loopback(t, "10.1.0.1/32", "10.1.0.2/32", "fd01::1/128", "fd01::2/128")
	serve(t, ns, "demo/web", probe.Port{Protocol: "TCP", Number: 80}, probe.Port{Protocol: "UDP", Number: 53})
	var questions []probe.Question
	for _, a := range []string{"10.1.0.1", "10.1.0.2", "fd01::1", "fd01::2"} {
		for _, q := range []probe.Question{{Protocol: "TCP"}, {Protocol: "UDP"}} {
			port := map[string]uint16{"TCP": 80, "UDP": 53}[q.Protocol]
			questions = append(questions, probe.Question{Protocol: q.Protocol, Timeout: patience, To: netip.AddrPortFrom(netip.MustParseAddr(a), port)})
		}
	}
	questions = append(questions,
		probe.Question{Protocol: "TCP", Timeout: patience, To: netip.MustParseAddrPort("10.1.0.1:81")},
		probe.Question{Protocol: "UDP", Timeout: patience, To: netip.MustParseAddrPort("[fd01::1]:54")},
		probe.Question{Protocol: "TCP", Timeout: patience, To: netip.MustParseAddrPort("192.0.2.1:80")})
	for i, a := range probe.Ask(t.Context(), ns, questions, probe.NewSlots(probe.AtOnce)) {
		q := questions[i]
		want := probe.Answer{Connected: true, Server: "demo/web", Seen: netip.AddrPortFrom(q.To.Addr(), a.Seen.Port())}
		if i >= 8 {
			want = probe.Answer{Err: []string{"connection refused", "connection refused", "network is unreachable"}[i-8]}
		}
		if d := cmp.Diff(want, a, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", q.Protocol, q.To, d)
		}
	}
}

func TestSCTP(t *testing.T) {
	if err := probe.HasSCTP(); err != nil {
		t.Skip(err)
	}
	ns := loopback(t, "10.1.0.1/32", "fd01::1/128")
	serve(t, ns, "demo/web", probe.Port{Protocol: "SCTP", Number: 9003})
	var questions []probe.Question
	for _, to := range []string{"10.1.0.1:9003", "[fd01::1]:9003", "10.1.0.1:9004"} {
		questions = append(questions, probe.Question{Protocol: "SCTP", Timeout: patience, To: netip.MustParseAddrPort(to)})
	}
	for i, a := range probe.Ask(t.Context(), ns, questions, probe.NewSlots(probe.AtOnce)) {
		if want := i < 2; a.Connected != want || (a.Server == "demo/web") != want {
			t.Errorf("%s: %+v, want connected: %t", questions[i].To, a, want)
		}
	}
}

func TestThousands(t *testing.T) {
	ns := loopback(t, "10.1.0.1/32")
	var ports []probe.Port
	var questions []probe.Question
	for i := range 3000 {
		protocol := []string{"TCP", "UDP"}[i%2]
		port := uint16(1000 + i%100)
		if i < 100 {
			ports = append(ports, probe.Port{Protocol: protocol, Number: port})
		}
		questions = append(questions, probe.Question{Protocol: protocol, Timeout: patience, To: netip.AddrPortFrom(netip.MustParseAddr("10.1.0.1"), port)})
	}
	serve(t, ns, "demo/web", ports...)
	for i, a := range probe.Ask(t.Context(), ns, questions, probe.NewSlots(probe.AtOnce)) {
		if a.Server != "demo/web" {
			t.Fatalf("%s %s: %+v", questions[i].Protocol, questions[i].To, a)
		}
	}
}

func TestSilenceIsReported(t *testing.T) {
	ns := loopback(t, "10.1.0.1/32")
	// A UDP socket that nobody reads answers nothing.
	var silent net.PacketConn
	err := netspace.Do(ns, func() (err error) {
		silent, err = net.ListenPacket("udp4", "10.1.0.1:9")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	q := []probe.Question{{Protocol: "UDP", Timeout: time.Second, To: netip.MustParseAddrPort("10.1.0.1:9")}}
	if got := probe.Ask(t.Context(), ns, q, probe.NewSlots(probe.AtOnce))[0]; got.Connected || got.Err != "no answer within 1s" {
		t.Errorf("got %+v, want no answer", got)
	}
}

func TestServerSpeaksHTTPAndKeepsConnections(t *testing.T) {
	ns := loopback(t, "10.1.0.1/32")
	serve(t, ns, "demo/web", probe.Port{Protocol: "TCP", Number: 80})
	dial := func(context.Context, string, string) (c net.Conn, err error) {
		err = netspace.Do(ns, func() error { c, err = net.Dial("tcp", "10.1.0.1:80"); return err })
		return c, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	r, err := client.Get("http://10.1.0.1/any/path")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || !strings.HasPrefix(string(body), "demo/web 10.1.0.1:") {
		t.Errorf("HTTP body %q, error %v", body, err)
	}
	c, err := dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := fmt.Sprintf("demo/web %s\n", c.LocalAddr())
	for range 3 {
		if _, err := io.WriteString(c, "again\n"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Fatalf("got %q, error %v; want %q", got, err, want)
		}
	}
}

func TestServeRefuses(t *testing.T) {
	ns := loopback(t)
	serve(t, ns, "demo/web", probe.Port{Protocol: "TCP", Number: 80})
	for _, tc := range []struct {
		name string
		port probe.Port
		want string
	}{
		{"taken", probe.Port{Protocol: "TCP", Number: 80}, "80/TCP"},
		{"unknown protocol", probe.Port{Protocol: "DCCP", Number: 80}, "80/DCCP"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := probe.Serve(ns, "demo/other", []probe.Port{tc.port}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error that names %s", err, tc.want)
			}
		})
	}
}
