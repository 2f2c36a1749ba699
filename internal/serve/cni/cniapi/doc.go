// Package cniapi is the contract between the CNI plugin that a container
// runtime executes (cmd/fairlead-cni) and the agent that does the work, over a
// unix socket.
//
// The plugin sends one request per execution:
//
//	POST /cni HTTP/1.0
//	Content-Type: application/json
//	Content-Length: N
//
//	{"command":"ADD","containerID":"…","netns":"…","ifName":"eth0",
//	 "args":"…","path":"…","netnsOverride":"…","config":"BASE64"}
//
// It is the plugin's environment and its standard input, unread: config is
// base64 because the plugin holds no JSON parser and what the runtime sends need
// not be JSON. Bytes of an environment variable that are not UTF-8 arrive as
// U+FFFD, as encoding/json would write them.
//
// The answer needs no parser either. It has status 200, a Content-Length (by
// which the plugin tells a whole answer from one that a dying agent cut off), the
// header Fairlead-CNI-Exit, and as its body exactly what the plugin prints on
// standard output: a CNI result, nothing, or a CNI error object. Every other
// status means that no CNI answer exists; the plugin turns it into an error
// object of its own.
//
// A refusal is always a CNI error with a code, a message and details, and never
// a bare status: that is what Handler is for.
//
// The package holds types, the two ends' encoding and the limits that both keep.
// It never opens a socket, decides nothing, and does not validate what a request
// says: that is the server's work.
package cniapi
