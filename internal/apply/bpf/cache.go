package bpf

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/internal/packet"
)

// flowLife is how long programs remember a flow: half a second, in the kernel's jiffies,
// of which one is what its coarse clocks are exact to.
func flowLife() (uint32, error) {
	var tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil {
		return 0, fmt.Errorf("ask how long a jiffy is: %w", err)
	}
	return uint32(max(int64(500*time.Millisecond)/max(tick.Nano(), 1), 1)), nil
}

// Cache turns the flow cache on or off. mtu is that of all links of ours, in bytes:
// what is larger never passes by. It returns what it changed, for people.
func (w *Wire) Cache(on bool, mtu int) ([]string, error) {
	if !on || !w.cache {
		mtu = 0
	}
	if w.flows.Mtu == uint32(mtu) {
		return nil, nil
	}
	if err := w.putCache(uint32(mtu)); err != nil {
		return nil, err
	}
	if mtu == 0 {
		return []string{"let no established connection pass by any more"}, nil
	}
	return []string{fmt.Sprintf("let established connections pass by (MTU %d)", mtu)}, nil
}

// Invalidate makes the programs forget what they have learned of flows and places: from
// now on no packet passes by that is not of a flow learned from one that comes later.
func (w *Wire) Invalidate() error { return w.putCache(w.flows.Mtu) }

// putCache begins a new generation.
func (w *Wire) putCache(mtu uint32) error {
	c := wireFlowConfig{Generation: w.flows.Generation + 1, Mtu: mtu, Life: w.life, Vni: uint32(w.onlyVPC())}
	if c.Generation == 0 { // which programs take for none
		c.Generation = 1
	}
	if err := w.objects.FlCache.Update(uint32(0), c, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write BPF map fl_cache: %w", err)
	}
	w.flows = c
	return nil
}

// onlyVPC is the VPC of all VNIs, 0 if there are several or none.
func (w *Wire) onlyVPC() packet.VNI {
	var only packet.VNI
	for _, vpc := range w.vnis {
		if only != 0 && vpc != only {
			return 0
		}
		only = vpc
	}
	return only
}
