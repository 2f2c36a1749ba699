package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	probeInterval = 2 * time.Second
	probeTimeout  = 3 * time.Second
	// silenceLimit is how long nobody may answer before every watch is ended: well
	// within the ten seconds of the contract.
	silenceLimit = 8 * time.Second
)

// outage is the end of every watch that was running when it began.
type outage struct {
	begun chan struct{}
	err   error // set before begun is closed
}

// health is what the probe knows of the cluster.
type health struct {
	mu sync.Mutex
	// outage is the one that watches wait for, or, once begun, are refused by. It
	// is replaced when the cluster answers again.
	outage *outage
	// newest is the newest revision that was seen.
	newest int64
	// lastAnswer is when the cluster last answered a linearizable read.
	lastAnswer time.Time
}

func newHealth() *health {
	return &health{outage: &outage{begun: make(chan struct{})}, lastAnswer: time.Now()}
}

func (h *health) silence() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.lastAnswer)
}

func (h *health) current() *outage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.outage
}

// begin starts the outage unless it has begun. h.mu is held.
func (h *health) begin(err error) {
	if h.outage.err == nil {
		h.outage.err = err
		close(h.outage.begun)
	}
}

func (h *health) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begin(err)
}

// saw notes a revision that some answer carried.
func (h *health) saw(revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.newest = max(h.newest, revision)
}

func (h *health) known() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// answered notes the revision that a linearizable read found; it ends an outage. A
// revision lower than what was known before the read began means that the cluster
// lost its data or got other data: whoever watches must list anew.
func (h *health) answered(revision, before int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.newest, h.lastAnswer = max(h.newest, revision), time.Now()
	if revision < before {
		h.begin(apierrors.NewResourceExpired(fmt.Sprintf("etcd went back from revision %d to %d: it was reset or restored", before, revision)))
		h.newest = revision
	}
	if h.outage.err != nil {
		h.outage = &outage{begun: make(chan struct{})}
	}
}

// probe asks the cluster for its revision, linearizably, until the Store is
// closed. The client hides lost connections from watches and would wait for a
// frozen server for ever; this does not.
func (s *Store) probe() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		begin, known := time.Now(), s.health.known()
		timeout := probeTimeout
		if left := silenceLimit - s.health.silence(); left > 0 && left < timeout {
			timeout = left
		}
		ctx, cancel := context.WithTimeout(s.ctx, timeout)
		resp, err := s.client.Get(ctx, s.config.Prefix+"/", clientv3.WithKeysOnly())
		cancel()
		switch {
		case err == nil:
			s.health.answered(resp.Header.Revision, known)
		case s.ctx.Err() != nil:
			return
		case s.health.silence() >= silenceLimit:
			s.health.fail(apierrors.NewServiceUnavailable(fmt.Sprintf("etcd: %s: no answer for %s: %v", strings.Join(s.config.Endpoints, ", "), silenceLimit, err)))
		}
		next := time.Until(begin.Add(probeInterval))
		if left := silenceLimit - s.health.silence(); left > 0 {
			next = min(next, left)
		}
		timer.Reset(max(next, 100*time.Millisecond))
	}
}

// truthfulProgress tells whether every server answers progress requests
// correctly: older ones may claim a revision whose events they have not sent yet
// (etcd issue 15220, fixed in 3.4.25 and 3.5.8).
func (s *Store) truthfulProgress(ctx context.Context) bool {
	if s.progress.Load() {
		return true
	}
	for _, endpoint := range s.client.Endpoints() {
		bounded, cancel := context.WithTimeout(ctx, s.config.DialTimeout)
		resp, err := s.client.Status(bounded, endpoint)
		cancel()
		if err != nil || !fixedVersion(resp.Version) {
			return false
		}
	}
	s.progress.Store(true)
	return true
}

func fixedVersion(version string) bool {
	version, _, _ = strings.Cut(version, "-")
	parts := strings.Split(version, ".")
	if len(parts) != 3 {
		return false
	}
	var n [3]int
	for i, p := range parts {
		var err error
		if n[i], err = strconv.Atoi(p); err != nil {
			return false
		}
	}
	switch major, minor, patch := n[0], n[1], n[2]; {
	case major != 3:
		return major > 3
	case minor == 4:
		return patch >= 25
	case minor == 5:
		return patch >= 8
	default:
		return minor > 5
	}
}
