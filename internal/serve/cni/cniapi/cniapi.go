package cniapi

import (
	"encoding/json"
	"strconv"
)

// Where the two ends meet.
const (
	// Socket is the unix socket that the agent listens on: owned by root, mode
	// 0600, in a directory that only root may write to. The plugin has the same
	// path compiled in.
	Socket = "/run/fairlead/cni.sock"
	// URLPath is the one path of the server.
	URLPath = "/cni"
	// HeaderExit carries the plugin's exit status: 0 for success, 1 for an error.
	HeaderExit = "Fairlead-Cni-Exit"
)

// Limits that both ends keep, in bytes.
const (
	// MaxConfig bounds what the plugin reads from standard input. The largest
	// legitimate configuration is that of GC, some 100 bytes per attachment.
	MaxConfig = 1 << 20
	// MaxRequest bounds the request's body: MaxConfig in base64, and an
	// environment that the kernel limits to 128 KiB per variable, each byte of
	// which may take six in JSON.
	MaxRequest = 8 << 20
	// MaxResponse bounds the answer's body. A result is a few kilobytes.
	MaxResponse = 1 << 20
)

// Version is the newest version of the CNI specification that Fairlead speaks.
const Version = "1.1.0"

// Versions lists every version of the CNI specification that Fairlead accepts
// and answers in, oldest first. The plugin answers VERSION with it.
func Versions() []string {
	return []string{"0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", Version}
}

// Command is a value of CNI_COMMAND (CNI specification 1.1.0, section 2). VERSION
// is missing: the plugin answers it alone.
type Command string

// The commands that reach the agent.
const (
	Add    Command = "ADD"
	Del    Command = "DEL"
	Check  Command = "CHECK"
	GC     Command = "GC"
	Status Command = "STATUS"
)

// Request is what a runtime asked the plugin. Nothing in it has been checked.
type Request struct {
	Command     Command `json:"command"`     // CNI_COMMAND
	ContainerID string  `json:"containerID"` // CNI_CONTAINERID
	Netns       string  `json:"netns"`       // CNI_NETNS, a path in the runtime's mount namespace
	IfName      string  `json:"ifName"`      // CNI_IFNAME
	Args        string  `json:"args"`        // CNI_ARGS, "K8S_POD_NAME=a;K8S_POD_NAMESPACE=b;…"
	Path        string  `json:"path"`        // CNI_PATH, separated by colons
	// NetnsOverride is CNI_NETNS_OVERRIDE: "1" or "true" allows the plugin's own
	// namespace as the container's.
	NetnsOverride string `json:"netnsOverride,omitempty"`
	// Config is the plugin's standard input, at most MaxConfig bytes: the network
	// configuration if the runtime is sane, any bytes if it is not.
	Config []byte `json:"config"`
}

// Response is what the plugin prints and how it exits. The zero value is a success
// that prints nothing, the right answer to DEL, CHECK, GC and STATUS.
type Response struct {
	// Stdout is printed as it is: a CNI result, a CNI error object, or nothing.
	Stdout []byte
	// Failed makes the plugin exit with status 1.
	Failed bool
}

// Refuse turns an error into the response that reports it.
func Refuse(e Error) Response {
	return Response{Stdout: e.JSON(), Failed: true}
}

// Code is a CNI error code. Codes below 100 are the specification's.
type Code uint

// The codes of the CNI specification 1.1.0, section 5 ("Error"), and of STATUS.
const (
	// CodeIncompatibleVersion: the configuration's cniVersion is not one of Versions.
	CodeIncompatibleVersion Code = 1
	// CodeUnsupportedField: the message must name the key and its value.
	CodeUnsupportedField Code = 2
	// CodeUnknownContainer: the container is unknown or does not exist; the runtime
	// need not clean up.
	CodeUnknownContainer Code = 3
	// CodeInvalidEnvironment: a CNI_* variable is missing or invalid; the message
	// must name it.
	CodeInvalidEnvironment Code = 4
	// CodeIO: reading or writing failed, such as standard input.
	CodeIO Code = 5
	// CodeDecode: the configuration is not JSON, or lacks cniVersion.
	CodeDecode Code = 6
	// CodeInvalidConfig: the configuration is JSON and wrong.
	CodeInvalidConfig Code = 7
	// CodeTryAgain: a passing condition; the runtime should retry.
	CodeTryAgain Code = 11
	// CodeUnavailable answers STATUS: no ADD can be served.
	CodeUnavailable Code = 50
	// CodeLimitedConnectivity answers STATUS: no ADD can be served, and containers
	// that are attached may have lost connectivity.
	CodeLimitedConnectivity Code = 51
	// CodeInternal is no code of the specification: whatever else went wrong.
	CodeInternal Code = 999
)

// Error is a CNI error object (CNI specification 1.1.0, section 5).
type Error struct {
	// CNIVersion is the protocol version in use; empty means Version.
	CNIVersion string `json:"cniVersion"`
	Code       Code   `json:"code"`
	// Msg is one line: what was tried, on what, and what to do next.
	Msg string `json:"msg"`
	// Details is the longer story, and may be empty.
	Details string `json:"details,omitempty"`
}

// Error returns message, details and code in one line.
func (e Error) Error() string {
	text := e.Msg
	if e.Details != "" {
		text += "; " + e.Details
	}
	return text + " (CNI error " + strconv.FormatUint(uint64(e.Code), 10) + ")"
}

// JSON returns the object as the plugin prints it.
func (e Error) JSON() []byte {
	if e.CNIVersion == "" {
		e.CNIVersion = Version
	}
	b, err := json.Marshal(e)
	if err != nil { // three strings and a number: unreachable
		return []byte(`{"cniVersion":"` + Version + `","code":999,"msg":"an error could not be encoded"}`)
	}
	return b
}
