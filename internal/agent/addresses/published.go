package addresses

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-sdn/fairlead/api/v1alpha1"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
)

// wrote wakes whoever waits for a publication.
func (s *Service) wrote() {
	close(s.written)
	s.written = make(chan struct{})
}

// Published returns when the datastore has a lease's addresses, so that other nodes learn
// of them at any moment; or when it is known not to take them now, or ctx ends.
func (s *Service) Published(ctx context.Context, l attach.Lease) {
	for {
		s.mu.Lock()
		done, written := s.lastErr != nil || s.shows(l), s.written
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-written:
		case <-ctx.Done():
			return
		}
	}
}

// shows reports whether the objects of own blocks, as last written, have a lease's
// addresses. What was borrowed is in the block of another node since it was lent.
func (s *Service) shows(l attach.Lease) bool {
	owner := v1alpha1.AddressOwner{Namespace: l.Owner.Namespace, Name: l.Owner.Name, UID: types.UID(l.Owner.UID)}
	for _, a := range l.Addresses {
		cidr, own := s.pool.BlockOf(l.Subnet, a)
		if !own {
			continue
		}
		if o := s.objects[blockKey{l.Subnet, cidr}]; o == nil || o.Spec.Allocations[a.String()] != owner {
			return false
		}
	}
	return true
}
