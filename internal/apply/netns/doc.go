// Package netns opens network namespaces and runs functions inside of them.
//
// It promises that no thread of the process is ever left in a namespace that is
// not the process's own: a thread that cannot be brought back dies. It opens
// nothing but network namespaces, whatever a path turns out to be, and tells a
// namespace that is gone from one that cannot be opened.
//
// It never creates, names or removes namespaces, and changes nothing in them.
package netns
