package nft

import (
	"fmt"

	"github.com/fairlead-sdn/fairlead/internal/intent"
)

// origins names the rules of policies with an action, as many as fit a comment.
func origins(prefix string, is intent.Action, rules []intent.Rule, about *portsOf) string {
	const room = 112 // of 127 bytes, for " and 12345 more"
	text, more := prefix, 0
	var before string
	for _, r := range rules {
		if r.Action != is || !about.concerns(r) {
			continue
		}
		name := originText(r.Origin)
		switch {
		case name == before:
		case before == "":
			text += name
		case more == 0 && len(text)+len(name)+2 <= room:
			text += ", " + name
		default:
			more++
		}
		before = name
	}
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// originText is "NetworkPolicy default/web rule 2": at most 101 bytes.
func originText(o intent.RuleOrigin) string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	what := "isolates"
	if o.Index >= 0 {
		what = fmt.Sprintf("rule %d", o.Index)
	}
	kind := label(o.Kind)
	name = label(name)
	return kind[:min(len(kind), 20)] + " " + name[:min(len(name), 62)] + " " + what
}
