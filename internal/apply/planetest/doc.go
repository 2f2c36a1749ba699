// Package planetest is the contract of apply.Plane as tests. Every plane passes
// it: the same intents, the same packets, the same verdicts. What a plane cannot
// show (a plane in memory opens no sockets) its Harness leaves out.
package planetest
