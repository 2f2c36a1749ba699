//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
//go:debug decoratemappings=0

package main

import (
	"runtime"
	"syscall"
)

// Set by the linker.
var (
	version    = "dev"
	socketPath = "/run/fairlead/cni.sock"
)

// CNI error codes (CNI specification 1.1.0, section 5 and STATUS).
const (
	codeEnvironment = 4
	codeIO          = 5
	codeConfig      = 7
	codeTryAgain    = 11
	codeUnavailable = 50
)

const (
	maxConfig   = 1 << 20 // bytes of standard input
	maxResponse = 1 << 20 // bytes of the answer's body
	maxHeader   = 1 << 16 // bytes of the answer before its body

	// The agent bounds ADD itself, far below this: the timeout is for an agent
	// that is stopped or wedged.
	answerTimeout = 120 // seconds
	// STATUS is asked every few seconds and answered from memory.
	statusTimeout = 10 // seconds
)

// refusal is an error object in the making.
type refusal struct {
	code int
	msg  string
}

func main() {
	// While the agent works, the only goroutine waits. With further processors the
	// runtime's watcher would not sleep but look every 20 µs, which costs a third of all
	// that the call does. Nor need the runtime look for limits of its cgroup before: it
	// reads all mounts of the node for that, of which each pod has some.
	runtime.GOMAXPROCS(1)
	syscall.Exit(run())
}

// run executes one CNI command and returns the exit status.
func run() int {
	command := getenv("CNI_COMMAND")
	switch command {
	case "ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION":
	case "":
		if isTerminal(stdin) {
			_ = writeAll(stderr, []byte("CNI plugin fairlead "+version+"\nCNI protocol versions supported: "+join(supported(), ", ")+"\n"))
			return 0
		}
		return fail(nil, refusal{codeEnvironment, "CNI_COMMAND is not set; a CNI plugin is executed by a container runtime"})
	default:
		return fail(nil, refusal{codeEnvironment, "CNI_COMMAND is " + quote(command) + "; it must be ADD, DEL, CHECK, GC, STATUS or VERSION"})
	}
	if command == "VERSION" && isTerminal(stdin) {
		return succeed(versionResult(nil))
	}
	config, problem := readConfig()
	if problem != nil {
		return fail(config, *problem)
	}
	if command == "VERSION" {
		return succeed(versionResult(config))
	}
	timeout := answerTimeout
	if command == "STATUS" {
		timeout = statusTimeout
	}
	answer, problem := ask(socketPath, timeout, command, request(command, config))
	if problem != nil {
		return fail(config, *problem)
	}
	if err := writeAll(stdout, answer.body); err != nil {
		return 1 // there is nowhere left to say so
	}
	return answer.exit
}

// readConfig reads standard input to its end. What it read is returned with the
// problem too: the error object names its cniVersion.
func readConfig() ([]byte, *refusal) {
	config, err := readAll(stdin, maxConfig+1)
	if err != nil {
		return config, &refusal{codeIO, "read the network configuration from standard input: " + err.Error()}
	}
	if len(config) > maxConfig {
		return config, &refusal{codeConfig, "the network configuration on standard input has more than " + decimal(maxConfig) + " bytes"}
	}
	return config, nil
}

// fail prints an error object and returns the exit status that goes with it.
func fail(config []byte, r refusal) int {
	out := append([]byte(nil), `{"cniVersion":`...)
	out = appendString(out, versionOf(config))
	out = append(out, `,"code":`+decimal(r.code)+`,"msg":`...)
	out = appendString(out, r.msg)
	out = append(out, "}\n"...)
	_ = writeAll(stdout, out)
	return 1
}

func succeed(out []byte) int {
	if writeAll(stdout, out) != nil {
		return 1
	}
	return 0
}

// supported lists the versions of the CNI specification that the agent accepts.
func supported() []string {
	return []string{"0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// versionResult answers VERSION in the version that was asked in.
func versionResult(config []byte) []byte {
	return []byte(`{"cniVersion":"` + versionOf(config) + `","supportedVersions":["` + join(supported(), `","`) + "\"]}\n")
}

func getenv(name string) string {
	value, _ := syscall.Getenv(name)
	return value
}
