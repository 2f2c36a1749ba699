package forwarding

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
	"github.com/fairlead-sdn/fairlead/test/lab/labtest"
)

// answerTime is how long a flow waits for an answer before it is lost.
const answerTime = 3 * time.Second

// flow asks the built-in server of a pod, or of the outside host, again and again
// over one connection.
type flow struct {
	network string // "udp" or "tcp"
	// server is what answers must begin with, client the address that they must name.
	server string
	client netip.AddrPort
	conn   net.Conn
	in     *bufio.Reader

	sameNode           bool
	asked, lost, wrong int
	answered           bool // the last question was
	slowest            time.Duration
	trouble            string // the first
}

// dial opens a flow from a network namespace. seen is the address that the server must
// see, if it is not the flow's own.
func dial(ns *os.File, network string, to netip.AddrPort, server string, seen netip.Addr) (*flow, error) {
	f := &flow{network: network, server: server}
	err := netspace.Do(ns, func() (err error) {
		d := net.Dialer{Timeout: answerTime}
		f.conn, err = d.Dial(network, to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	f.in = bufio.NewReader(f.conn)
	f.client, err = netip.ParseAddrPort(f.conn.LocalAddr().String())
	if seen.IsValid() {
		f.client = netip.AddrPortFrom(seen, 0) // masquerade may change the port
	}
	return f, err
}

// ask asks once.
func (f *flow) ask() {
	began := time.Now()
	f.asked++
	_, err := f.conn.Write([]byte("?\n"))
	var line string
	if err == nil {
		if err = f.conn.SetReadDeadline(began.Add(answerTime)); err == nil {
			line, err = f.in.ReadString('\n')
		}
	}
	f.slowest = max(f.slowest, time.Since(began))
	f.answered = err == nil && f.right(line)
	switch {
	case err != nil:
		f.lost++
		f.note("after %s: %v", time.Since(began).Round(time.Millisecond), err)
	case !f.right(line):
		f.wrong++
		f.note("answered %q, want %s as %s", line, f.server, f.client)
	}
}

func (f *flow) right(line string) bool {
	server, client, _ := strings.Cut(strings.TrimSpace(line), " ")
	seen, err := netip.ParseAddrPort(client)
	return err == nil && server == f.server && seen.Addr() == f.client.Addr() && (f.client.Port() == 0 || seen.Port() == f.client.Port())
}

func (f *flow) note(format string, args ...any) {
	if f.trouble == "" {
		f.trouble = fmt.Sprintf("%s flow %s → %s (%s) at its %d. question: ", f.network, f.client, f.conn.RemoteAddr(), f.server, f.asked) +
			fmt.Sprintf(format, args...)
	}
}

// traffic is many flows at once.
type traffic struct {
	t     testing.TB
	flows []*flow
	stop  context.CancelFunc
	wg    sync.WaitGroup
	asked atomic.Int64
}

// pairing is one kind of flow.
type pairing struct {
	from, to string // pods; to may be "outside"
	network  string
	v6       bool
}

// pairings are all ways between pods on these nodes (each with two pods, a1, a2), same
// node and across, and to the outside host, in both families and protocols.
func pairings(nodes []string) []pairing {
	var out []pairing
	for _, network := range []string{"udp", "udp", "udp", "tcp"} { // three of four are UDP
		for _, v6 := range []bool{false, true} {
			for _, from := range nodes {
				out = append(out, pairing{podName(from, 1), "outside", network, v6})
				for _, to := range nodes {
					out = append(out, pairing{podName(from, 1), podName(to, 2), network, v6})
				}
			}
		}
	}
	return out
}

// start opens n flows, spread over the pairings, and keeps asking on each, some times
// a second, until end.
func start(t testing.TB, l *labtest.Lab, n int, every time.Duration, ways []pairing) *traffic {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	tr := &traffic{t: t, stop: stop}
	t.Cleanup(tr.close)
	spaces := map[string]*os.File{}
	for i := range n {
		w := ways[i%len(ways)]
		if spaces[w.from] == nil {
			spaces[w.from] = inPod(t, l, w.from)
		}
		f, err := open(t, l, spaces[w.from], w)
		if err != nil {
			t.Fatalf("open flow %+v: %v", w, err)
		}
		f.sameNode = w.from[0] == w.to[0]
		tr.flows = append(tr.flows, f)
		// The first packets come one after the other: of a thousand in one millisecond a
		// switch in userspace loses some in its sockets.
		f.ask()
		tr.asked.Add(1)
	}
	for _, f := range tr.flows {
		tr.wg.Go(func() { tr.keepAsking(ctx, f, every) })
	}
	// Every flow has been answered once before anything is done to it.
	labtest.Eventually(t, labtest.Patience, func() error {
		if got := tr.asked.Load(); got < int64(2*n) {
			return fmt.Errorf("%d of %d questions were asked", got, 2*n)
		}
		return nil
	})
	return tr
}

func open(t testing.TB, l *labtest.Lab, ns *os.File, w pairing) (*flow, error) {
	if w.to != "outside" {
		return dial(ns, w.network, netip.AddrPortFrom(addressOf(t, l, w.to, w.v6), port), "default/"+w.to, netip.Addr{})
	}
	node := fmt.Sprintf("node-%d", w.from[0]-'a'+1)
	to, seen := outside4, netip.Addr{}
	if w.v6 {
		to = outside6
	}
	for _, p := range l.Node(node).Addresses {
		if p.Addr().Is6() == w.v6 {
			seen = p.Addr()
		}
	}
	return dial(ns, w.network, netip.AddrPortFrom(to, port), "outside", seen)
}

// Addresses of the outside host.
var (
	outside4 = netip.MustParseAddr("203.0.113.10")
	outside6 = netip.MustParseAddr("2001:db8:113::10")
)

func (tr *traffic) keepAsking(ctx context.Context, f *flow, every time.Duration) {
	for {
		f.ask()
		tr.asked.Add(1)
		timer := time.NewTimer(every/2 + rand.N(every))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (tr *traffic) close() {
	tr.stop()
	tr.wg.Wait()
	for _, f := range tr.flows {
		if f.conn != nil {
			f.conn.Close()
		}
	}
}

// more waits until the flows have asked n more questions.
func (tr *traffic) more(n int) {
	tr.t.Helper()
	until := tr.asked.Load() + int64(n)
	labtest.Eventually(tr.t, 2*labtest.Patience, func() error {
		if got := tr.asked.Load(); got < until {
			return fmt.Errorf("%d of %d questions were asked", got, until)
		}
		return nil
	})
}

// end stops the flows and returns what was lost and what was wrong.
func (tr *traffic) end() (lost, wrong int) {
	tr.t.Helper()
	tr.close()
	asked, slowest := 0, time.Duration(0)
	var troubles []string
	for _, f := range tr.flows {
		asked, lost, wrong, slowest = asked+f.asked, lost+f.lost, wrong+f.wrong, max(slowest, f.slowest)
		if f.trouble != "" {
			troubles = append(troubles, f.trouble)
		}
	}
	slices.Sort(troubles)
	tr.t.Logf("%d flows asked %d questions: %d lost, %d wrong, the slowest answer took %s", len(tr.flows), asked, lost, wrong, slowest.Round(time.Millisecond))
	for _, s := range troubles[:min(10, len(troubles))] {
		tr.t.Log(s)
	}
	return lost, wrong
}

// intact ends the flows and wants nothing lost and nothing wrong.
func (tr *traffic) intact() {
	tr.t.Helper()
	if lost, wrong := tr.end(); lost+wrong > 0 {
		tr.t.Errorf("%d answers were lost and %d wrong, want none", lost, wrong)
	}
}

// underWay is how many packets within a node some flushes may lose together.
const underWay = 3

// recovered ends flows that were cut for a while, and wants them to be answered since:
// nothing wrong, and within a node hardly anything lost: a packet that is under way in
// the moment of a flush may be. Masqueraded TCP connections may be
// reset: without rules the node itself gets the answers and knows nothing of them.
func (tr *traffic) recovered() {
	tr.t.Helper()
	timer := time.NewTimer(answerTime + time.Second) // whoever waits for a lost answer asks again
	<-timer.C
	if _, wrong := tr.end(); wrong > 0 {
		tr.t.Errorf("%d answers were wrong", wrong)
	}
	within := 0
	for _, f := range tr.flows {
		switch {
		case !f.answered && f.network == "tcp" && f.server == "outside":
			tr.t.Logf("reset: %s", f.trouble)
		case !f.answered:
			tr.t.Errorf("not recovered: %s", f.trouble)
		case f.sameNode && f.lost > 0:
			within += f.lost
			tr.t.Logf("lost within a node: %s", f.trouble)
		}
	}
	if within > underWay {
		tr.t.Errorf("%d answers were lost within a node, want at most %d", within, underWay)
	}
}

// reach asks once, by UDP, from a pod or another namespace.
func reach(ns *os.File, to netip.Addr, server string, seen netip.Addr) error {
	f, err := dial(ns, "udp", netip.AddrPortFrom(to, port), server, seen)
	if err != nil {
		return err
	}
	defer f.conn.Close()
	f.ask()
	if f.trouble != "" {
		return errors.New(f.trouble)
	}
	return nil
}
