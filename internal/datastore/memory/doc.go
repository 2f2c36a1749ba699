// Package memory is the datastore inside one process: for tests, and for what
// asks "what if" without writing anywhere. It behaves as the etcd datastore
// does: objects pass through JSON once, the history of events is bounded, and a
// watcher that falls behind it ends with IsResourceExpired. Nothing survives the
// process, and nothing blocks a writer. It does not ask whether the namespace of a new
// object exists: tests need not make what they are not about.
package memory
