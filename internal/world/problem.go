package world

import "cmp"

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
