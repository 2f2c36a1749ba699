// Package reconcile owns the one loop between the world and the plane: it takes
// the newest snapshot, has it compiled into an intent, applies that, and tells
// whoever waits for a revision.
//
// It never handles events: many changes become one pass. A pass follows a change
// at once if the loop was idle, and at least MinInterval after the previous pass
// otherwise. Failed objects are tried again with a growing delay, foreign changes
// at once, and everything is read back from the kernel every Resync.
//
// Where the plane is an apply.Ahead, the rules of what comes during a pass that takes
// long do not wait for its end. The pass that follows asks the plane, whatever it finds.
//
// The loop decides nothing about the network and touches no kernel itself.
package reconcile
