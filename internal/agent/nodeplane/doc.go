// Package nodeplane owns what the programs that run on a node share: opening the data plane that
// the configuration names, and taking everything of Fairlead away from the node again.
//
// It promises that nothing is removed while an agent runs, that an agent cannot start
// meanwhile, and that it tells what was there and what is left. It never touches what does
// not bear a name or number of package claims, or is not in the agent's folders.
package nodeplane
