package ovsplane

import (
	"github.com/fairlead-sdn/fairlead/internal/apply/netns"
	"github.com/fairlead-sdn/fairlead/internal/apply/offload"
	"github.com/fairlead-sdn/fairlead/internal/render/linux"
)

// plainFrames makes a pod finish its frames: with the datapath in userspace nobody else
// computes the checksums of what the pod sends, and nobody cuts what is larger than its
// MTU. It reports whether anything was changed.
func plainFrames(p linux.Port) (changed bool, err error) {
	ns, err := netns.Open(p.Netns)
	if err != nil {
		return false, err
	}
	defer ns.Close()
	err = ns.Do(func() (err error) {
		changed, err = offload.FinishFrames(p.Name)
		return err
	})
	return changed, err
}
