package linuxplane

import (
	"github.com/fairlead-sdn/fairlead/internal/intent"
	rendernft "github.com/fairlead-sdn/fairlead/internal/render/nft"
)

// Tables is the table that the intent renders to now, in the words of nft.
func (p *Plane) Tables(n intent.Node) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table(n, rendernft.Options{Adopting: p.adopting}).String()
}
