// Command fairlead-cni is the CNI plugin that a container runtime executes: a pipe from
// standard input and the CNI_* variables to the agent's socket, and from its
// answer to standard output and the exit status. The agent parses, decides and
// writes the result; package internal/serve/cni/cniapi is the contract.
//
// What it does alone:
//   - VERSION, with the list of versions compiled in;
//   - a CNI error where no agent answers: code 11 ("try again later"), which every
//     runtime retries, and for STATUS code 50 ("not available");
//   - a CNI error for an unset or unknown CNI_COMMAND (code 4) and for more than
//     1 MiB on standard input (code 7).
//
// A runtime executes it for every container, so that what it costs is the start of
// a process: it makes raw socket calls, writes its HTTP/1.0 request by hand and
// links neither net nor encoding/json, os or fmt, each of which costs more in
// initialisation and page faults than all that the plugin does.
//
// The path of the socket is fixed when the program is linked
// (-ldflags "-X main.socketPath=…"). It is neither a variable of the environment
// nor a key of the configuration: the plugin runs as root and hands the agent's
// answer to the runtime, so nobody who can only write a configuration or an
// environment may choose whom it believes.
package main
