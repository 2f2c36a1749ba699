package spec

// FaultKind names something that can be done to a lab.
type FaultKind string

// The kinds of faults, and of their repairs.
const (
	AgentKill     FaultKind = "agent-kill"
	AgentFreeze   FaultKind = "agent-freeze"
	AgentContinue FaultKind = "agent-continue"
	AgentStop     FaultKind = "agent-stop"
	AgentStart    FaultKind = "agent-start"
	AgentRestart  FaultKind = "agent-restart"

	SwitchKill      FaultKind = "switch-kill"
	SwitchStart     FaultKind = "switch-start"
	SwitchRestart   FaultKind = "switch-restart"
	SwitchFreeze    FaultKind = "switch-freeze"
	SwitchContinue  FaultKind = "switch-continue"
	DatabaseKill    FaultKind = "switch-database-kill"
	DatabaseStart   FaultKind = "switch-database-start"
	DatabaseRestart FaultKind = "switch-database-restart"
	DatabaseWipe    FaultKind = "switch-database-wipe"

	LinkCut     FaultKind = "link-cut"
	LinkRestore FaultKind = "link-restore"

	NodeReboot   FaultKind = "node-reboot"
	NodePowerOff FaultKind = "node-power-off"
	NodePowerOn  FaultKind = "node-power-on"
	NodeGC       FaultKind = "node-gc"
	NodeCheck    FaultKind = "node-check"

	DatastoreStop     FaultKind = "datastore-stop"
	DatastoreKill     FaultKind = "datastore-kill"
	DatastoreStart    FaultKind = "datastore-start"
	DatastoreFreeze   FaultKind = "datastore-freeze"
	DatastoreContinue FaultKind = "datastore-continue"
	DatastoreCompact  FaultKind = "datastore-compact"

	ControllerKill     FaultKind = "controller-kill"
	ControllerFreeze   FaultKind = "controller-freeze"
	ControllerContinue FaultKind = "controller-continue"
	ControllerStop     FaultKind = "controller-stop"
	ControllerStart    FaultKind = "controller-start"
	ControllerRestart  FaultKind = "controller-restart"
)

// Fault is something to do to a lab.
type Fault struct {
	Kind FaultKind `json:"kind"`
	// Node that it is done to, for kinds that need one.
	Node string `json:"node,omitempty"`
	// Env is added to the environment of a process that the fault starts.
	Env []string `json:"env,omitempty"`
}

// FaultInfo describes a kind of fault.
type FaultInfo struct {
	Kind FaultKind
	// OnNode: Fault.Node must name a node.
	OnNode bool
	About  string
}

// Faults lists the kinds of faults.
func Faults() []FaultInfo {
	return []FaultInfo{
		{AgentKill, true, "kill the agent (SIGKILL); it stays dead"},
		{AgentFreeze, true, "freeze the agent (SIGSTOP)"},
		{AgentContinue, true, "let a frozen agent go on (SIGCONT)"},
		{AgentStop, true, "ask the agent to end (SIGTERM)"},
		{AgentStart, true, "start the agent if it does not run"},
		{AgentRestart, true, "stop and start the agent"},
		{SwitchKill, true, "kill ovs-vswitchd (SIGKILL); it stays dead"},
		{SwitchStart, true, "start ovs-vswitchd if it does not run"},
		{SwitchRestart, true, "kill ovs-vswitchd and start it again"},
		{SwitchFreeze, true, "freeze ovs-vswitchd (SIGSTOP)"},
		{SwitchContinue, true, "let a frozen ovs-vswitchd go on (SIGCONT)"},
		{DatabaseKill, true, "kill the node's ovsdb-server (SIGKILL); it stays dead"},
		{DatabaseStart, true, "start the node's ovsdb-server if it does not run"},
		{DatabaseRestart, true, "kill the node's ovsdb-server and start it again"},
		{DatabaseWipe, true, "kill the node's ovsdb-server, empty its database and start it again"},
		{LinkCut, true, "pull the cable of the node's eth0"},
		{LinkRestore, true, "plug the cable of the node's eth0 in"},
		{NodeReboot, true, "power loss and boot: processes, namespaces and /run are gone, /var is kept"},
		{NodePowerOff, true, "power loss: everything on the node ends at once, no CNI DEL is called"},
		{NodePowerOn, true, "boot a node that is off"},
		{NodeGC, true, "call CNI GC with the node's living sandboxes"},
		{NodeCheck, true, "call CNI CHECK for every pod of the node"},
		{DatastoreStop, false, "ask etcd to end (SIGTERM)"},
		{DatastoreKill, false, "kill etcd (SIGKILL)"},
		{DatastoreStart, false, "start etcd if it does not run"},
		{DatastoreFreeze, false, "freeze etcd (SIGSTOP)"},
		{DatastoreContinue, false, "let a frozen etcd go on (SIGCONT)"},
		{DatastoreCompact, false, "compact etcd's history up to now"},
		{ControllerKill, false, "kill the controller (SIGKILL); it stays dead"},
		{ControllerFreeze, false, "freeze the controller (SIGSTOP)"},
		{ControllerContinue, false, "let a frozen controller go on (SIGCONT)"},
		{ControllerStop, false, "ask the controller to end (SIGTERM)"},
		{ControllerStart, false, "start the controller if it does not run"},
		{ControllerRestart, false, "stop and start the controller"},
	}
}
