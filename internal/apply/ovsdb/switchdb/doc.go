// Package switchdb brings bridges and ports into the database of an Open vSwitch and
// keeps them there.
//
// The caller hands over all bridges that it wants, with all their ports (Apply). The
// difference to what the database holds becomes one transaction, which happens whole
// or not at all; then Apply waits until ovs-vswitchd has realised it and says which
// OpenFlow port each port became, or what is wrong with it. Nothing is sent when
// nothing differs. Who knows a quicker sign does the two parts by themselves (Submit,
// Submission.Wait).
//
// Ownership. Bridges and ports that we make bear a mark in external_ids. What bears
// it and was not asked for is removed; what does not bear it is never changed, and a
// bridge or port of the same name is refused (ErrForeign). In our own rows the
// columns that Apply sets are ours wholly: what others write there is put back, and a
// controller that somebody gave our bridge is taken away, for flows have one author.
//
// An Open vSwitch whose database was wiped has nothing that differs from an empty one:
// the next Apply makes everything anew. Whoever keeps things right waits on Changed
// and applies again.
package switchdb
