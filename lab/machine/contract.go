package machine

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-sdn/fairlead/lab/fabric"
	"github.com/fairlead-sdn/fairlead/lab/probe"
	"github.com/fairlead-sdn/fairlead/lab/process"
)

// Paths as the node sees them.
const (
	// HomeDir is the node's directory of the lab: logs and configuration.
	HomeDir = "/var/lib/fairlead-lab"
	// StateDir survives a reboot of the node, RunDir does not.
	StateDir = "/var/lib/fairlead"
	RunDir   = "/run/fairlead"

	netnsDir  = "/run/netns"
	cniDir    = "/var/lib/cni"
	cniConfig = HomeDir + "/etc/cni/net.d"
)

// Directories of the node's directory on disk, and where the node sees them.
const (
	DirRun = "run" // /run
	DirVar = "var" // StateDir
	DirCNI = "cni" // /var/lib/cni
	DirEtc = "etc" // HomeDir/etc
	DirLog = "log" // HomeDir/log
)

// AgentConfigFile is the agent's configuration as the node sees it.
const AgentConfigFile = HomeDir + "/" + DirEtc + "/agent.yaml"

// Config is what process 1 of a node is told when it starts, on its standard input.
type Config struct {
	Name string `json:"name"`
	// Directory of the node on the host.
	Directory string           `json:"directory"`
	Interface fabric.Interface `json:"interface"`
	// Agent is the command that runs the node's agent.
	Agent []string `json:"agent"`
	// AgentEnv is added to the agent's environment.
	AgentEnv []string `json:"agentEnv,omitempty"`
	// OVS gives the node an Open vSwitch of its own.
	OVS bool `json:"ovs,omitempty"`
	// FinishFrames makes the node's NIC put finished frames on the wire, as hardware does:
	// with checksums, and none larger than the MTU. Otherwise veth pairs leave that to
	// whoever receives.
	FinishFrames bool `json:"finishFrames,omitempty"`
	// HoldAgent leaves the agent to be started by request.
	HoldAgent bool `json:"holdAgent,omitempty"`
	// CNIPath are the directories of CNI plugins.
	CNIPath []string `json:"cniPath"`
}

// State is what a node reports.
type State struct {
	// Revision grows with every change of the state.
	Revision uint64         `json:"revision"`
	Agent    process.Status `json:"agent"`
	// Switch and Database are ovs-vswitchd and ovsdb-server, nil without them.
	Switch   *process.Status `json:"switch,omitempty"`
	Database *process.Status `json:"database,omitempty"`
	// Ready is the answer of the CNI plugin to STATUS; Reason says why it is not.
	Ready  bool       `json:"ready"`
	Reason string     `json:"reason,omitempty"`
	Pods   []PodState `json:"pods"`
}

// PodState is what became of a pod.
type PodState struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	UID       string          `json:"uid"`
	Phase     corev1.PodPhase `json:"phase"`
	Ready     bool            `json:"ready"`
	// Reason and Message say why a pod is not (yet) running.
	Reason  string       `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
	IPs     []netip.Addr `json:"ips,omitempty"`
	// Sandbox is the container id that the CNI plugin was given, Netns the name of
	// the network namespace in the node's /run/netns; empty with hostNetwork.
	Sandbox    string           `json:"sandbox,omitempty"`
	Netns      string           `json:"netns,omitempty"`
	Started    time.Time        `json:"started,omitzero"`
	Containers []ContainerState `json:"containers,omitempty"`
}

// ContainerState is how a container is. A container with the built-in server has
// no process.
type ContainerState struct {
	Name    string `json:"name"`
	Init    bool   `json:"init,omitempty"`
	Running bool   `json:"running"`
	// Pid in the numbers of the host.
	Pid      int       `json:"pid,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Restarts int       `json:"restarts"`
	// Exited says that the last run ended, with ExitCode and for Reason.
	Exited   bool      `json:"exited,omitempty"`
	ExitCode int       `json:"exitCode,omitempty"`
	Finished time.Time `json:"finished,omitzero"`
	Reason   string    `json:"reason,omitempty"`
	// Failing says why the container is being started again and again: until it has
	// run for a while it is not ready.
	Failing string `json:"failing,omitempty"`
}

// CrashLoop is the reason of a container that is started again and again.
const CrashLoop = "CrashLoopBackOff"

// AgentAction is what can be done to the agent's process.
type AgentAction string

// The actions on an agent.
const (
	KillAgent     AgentAction = "kill"     // SIGKILL
	FreezeAgent   AgentAction = "freeze"   // SIGSTOP
	ContinueAgent AgentAction = "continue" // SIGCONT
	RestartAgent  AgentAction = "restart"  // SIGTERM, then start
	StartAgent    AgentAction = "start"
	StopAgent     AgentAction = "stop" // SIGTERM
)

// AgentRequest asks for an action. Env is added to the environment of an agent that
// the action starts.
type AgentRequest struct {
	Action AgentAction `json:"action"`
	Env    []string    `json:"env,omitempty"`
}

// SwitchAction is what can be done to a node's Open vSwitch.
type SwitchAction string

// The actions on ovs-vswitchd, and on its ovsdb-server.
const (
	KillSwitch      SwitchAction = "kill"
	StartSwitch     SwitchAction = "start"
	RestartSwitch   SwitchAction = "restart" // SIGKILL, then start
	FreezeSwitch    SwitchAction = "freeze"
	ContinueSwitch  SwitchAction = "continue"
	KillDatabase    SwitchAction = "database-kill"
	StartDatabase   SwitchAction = "database-start"
	RestartDatabase SwitchAction = "database-restart"
	WipeDatabase    SwitchAction = "database-wipe"
)

// SwitchRequest asks for an action.
type SwitchRequest struct {
	Action SwitchAction `json:"action"`
}

// ProbeRequest asks questions from inside pods and from the node itself.
type ProbeRequest struct {
	// AtOnce bounds how many probes are being started at the same time.
	AtOnce  int           `json:"atOnce"`
	Sources []ProbeSource `json:"sources"`
}

// ProbeSource is a pod, or the node itself if UID is empty, and what it asks.
type ProbeSource struct {
	UID       string           `json:"uid,omitempty"`
	Questions []probe.Question `json:"questions"`
}
