// Package feed turns the datastore's watches into changes of the world: one goroutine
// a kind lists once, watches from there, and resumes after a lost connection from the
// last resourceVersion it has seen. It lists again only when the datastore has
// forgotten that version.
//
// It promises:
//
//   - Every event reaches the world once and in order, with the position it leads to.
//   - A kind is marked as synced when its first list has arrived and is trusted.
//   - A list that suddenly lacks over a fifth and at least three of the objects that
//     the world holds removes nothing until a second list, a second later, lacks them too;
//     until then Status calls the kind suspicious.
//   - Retries wait at most two seconds, with jitter, so that a datastore that comes
//     back is noticed soon and not by everybody at once.
//   - Conversion is total: a field that cannot be read is left out, or kept as it is
//     where the world has room for it, and becomes a Problem; nothing panics.
//   - What the network does not need of an object is not kept.
//
// It writes nothing to the datastore and knows nothing of the node it runs on.
package feed
