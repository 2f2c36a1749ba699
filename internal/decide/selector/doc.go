// Package selector parses and evaluates label selectors by the semantics of the
// Kubernetes API (LabelSelector of meta/v1): all requirements must hold; a nil
// selector matches nothing, an empty one everything; NotIn and DoesNotExist hold
// for a label that is absent.
//
// Parsing happens once, evaluation many times. An invalid selector is an error
// that names the requirement; what an invalid selector means is the caller's to
// decide. The package does no I/O and keeps no state.
package selector
