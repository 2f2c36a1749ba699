// Package reconnect keeps connections, one after the other, to a daemon that may be away:
// it decides when the next one is tried, and refuses what callers ask meanwhile.
//
// It promises that tries become rarer while they fail, never rarer than the bound, and
// that no caller waits for one. It never dials, and keeps nothing.
package reconnect
