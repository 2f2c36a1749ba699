// Package health holds the state of a daemon's components: each is ok, degraded
// (it works, but something needs a person), or failed, with a reason and the time
// since when. It is what readiness probes, the CLI and NodeNetwork conditions
// show. Components report; nobody polls them.
package health
