// Package etcd is the datastore on an etcd cluster (version 3.4 or later), as a
// client only.
//
// Objects are JSON at PREFIX/PLURAL/NAME, or PREFIX/PLURAL/NAMESPACE/NAME. An
// object's resourceVersion is the revision of the key's last change, a list's the
// revision of the read. Every write is one transaction that compares the key's
// revision, so that no write is lost and none half done. An object that the Store itself
// wrote last is not read for the next update: the same comparison tells if that was wrong.
//
// What it promises beyond the contract of package datastore:
//   - every call ends within Config.RequestTimeout. A write that ends with
//     IsTimeout or IsServiceUnavailable may have been done all the same;
//   - a watch survives the restart of a server without a gap; if no server
//     answers for eight seconds (frozen, unreachable, no quorum) it ends with an
//     error;
//   - a datastore that was reset or restored from a backup ends its watches with
//     IsResourceExpired, so that readers list anew;
//   - values that it cannot read are reported to Config.OnCorrupt; lists and watches pass
//     over them, but for policies, which datastore.StandIn stands for;
//   - reconnects back off to two seconds at most, with jitter.
//
// It never logs, never compacts, and touches nothing outside its prefix.
package etcd
