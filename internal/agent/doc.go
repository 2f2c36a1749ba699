// Package agent is fairlead-agent: it joins the packages of one node into a running
// daemon. Agent.Run is meant to be read from top to bottom: what is opened, what is
// restored from disk before anything else, which loops run, and what each tells the
// others.
//
// The package decides nothing about the network (decide does), allocates nothing
// (ipam and addresses do) and touches no kernel (planes do). It owns the node's
// NodeNetwork object, the checkpoint of the world, and the order of start and end:
// ending changes nothing in the kernel, so that traffic goes on without an agent.
package agent
