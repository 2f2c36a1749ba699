package world

import (
	"cmp"
	"strings"
)

// Problem is something wrong with one object, found while the world was read or
// decided. A problem never stops anything but its own object.
type Problem struct {
	Kind Kind
	Key  Key
	// Field is the path inside the object, if one field is to blame.
	Field string
	// Reason is one CamelCase word that scripts can match; Message is for people.
	Reason  string
	Message string
}

// Compare orders problems by kind, key, field, reason and message.
func (p Problem) Compare(o Problem) int {
	return cmp.Or(cmp.Compare(p.Kind, o.Kind), p.Key.Compare(o.Key), cmp.Compare(p.Field, o.Field),
		cmp.Compare(p.Reason, o.Reason), cmp.Compare(p.Message, o.Message))
}

// maxText bounds what a person is told in one text, in bytes.
const maxText = 1024

// Brief is the problem with texts of a bounded length: an object that somebody wrote
// past all checks may hold a megabyte, and problems repeat what they are about.
func (p Problem) Brief() Problem {
	for _, text := range []*string{&p.Key.Namespace, &p.Key.Name, &p.Field, &p.Message} {
		if len(*text) > maxText {
			*text = strings.ToValidUTF8((*text)[:maxText], "") + "…"
		}
	}
	return p
}
