// Package selector parses and evaluates label selectors by the semantics of the
// Kubernetes API (LabelSelector of meta/v1): all requirements must hold; a nil
// selector matches nothing, an empty one everything; NotIn and DoesNotExist hold
// for a label that is absent.
//
// Parsing happens once, evaluation many times. An invalid selector is an error
// that names the requirement; what an invalid selector means is the caller's to
// decide.
//
// Two structures turn evaluation over many pods around. An Index holds pods and
// namespaces by label: a new Query reads the pods that one of its labels leads to.
// A Catalog holds queries by label: a changed pod asks only the queries that one of
// its labels, or its namespace, leads to. Both are immutable, and successive
// versions of an Index share what did not change.
//
// What is not known (yet), the labels of a pod or of a namespace, makes an Answer
// Maybe; what to do then is the caller's to decide too.
//
// The package does no I/O and keeps no state.
package selector
