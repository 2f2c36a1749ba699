// Package admin is the agent's door for people: JSON over a unix socket that only
// root can open, and the client that the CLI uses. What is asked is answered from
// values that the agent holds anyway; only audit, explain, flows and capture read the
// kernel, and nothing changes anything.
//
// The types here are the contract with the CLI and with scripts (docs/cli.md):
// fields are added, never renamed.
package admin
