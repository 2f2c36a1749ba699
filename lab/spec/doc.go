// Package spec holds the values that the parts of a lab exchange and store: what
// was asked for, what is going on, what can be broken. It does nothing.
package spec
