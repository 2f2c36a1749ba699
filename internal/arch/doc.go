// Package arch holds the architecture by tests: which package may import which
// (docs/architecture.md), what a binary may link, and which names no package
// bears. It has no code of its own.
package arch
