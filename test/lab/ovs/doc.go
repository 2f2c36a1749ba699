// Package ovs tests labs whose nodes run Open vSwitch: the same checks as on the linux
// plane, clusters of both, and what happens to traffic when Open vSwitch is restarted,
// emptied or tampered with.
package ovs
