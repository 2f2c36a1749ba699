package main

import "syscall"

// answer is what the agent wants printed.
type answer struct {
	body []byte
	exit int
}

// request returns the HTTP request for one command (package cniapi).
func request(command string, config []byte) []byte {
	body := make([]byte, 0, 1024+len(config)/3*4)
	body = append(body, `{"command":`...)
	body = appendString(body, command)
	for _, v := range [...]struct{ key, variable string }{
		{"containerID", "CNI_CONTAINERID"},
		{"netns", "CNI_NETNS"},
		{"ifName", "CNI_IFNAME"},
		{"args", "CNI_ARGS"},
		{"path", "CNI_PATH"},
		{"netnsOverride", "CNI_NETNS_OVERRIDE"},
	} {
		body = append(body, `,"`+v.key+`":`...)
		body = appendString(body, getenv(v.variable))
	}
	body = append(body, `,"config":"`...)
	body = appendBase64(body, config)
	body = append(body, `"}`...)

	head := "POST /cni HTTP/1.0\r\nHost: fairlead\r\nUser-Agent: fairlead-cni/" + version +
		"\r\nContent-Type: application/json\r\nContent-Length: " + decimal(len(body)) + "\r\n\r\n"
	return append([]byte(head), body...)
}

// ask sends the request to the agent on socket and waits for its whole answer,
// timeout seconds at most for every step.
func ask(socket string, timeout int, command string, request []byte) (answer, *refusal) {
	absent := codeTryAgain
	if command == "STATUS" {
		absent = codeUnavailable
	}
	fd, err := dial(socket, timeout)
	if err != nil {
		return answer{}, &refusal{absent, dialMessage(socket, err)}
	}
	defer syscall.Close(fd)
	sent := writeAll(fd, request)
	if sent == syscall.EAGAIN {
		return answer{}, &refusal{absent, "fairlead-agent did not read the request within " + decimal(timeout) + " s (socket " + socket + "); is it stopped? the runtime will try again"}
	}
	// After another error a server that refused early may still have answered.
	var raw []byte
	for {
		a, done, problem := parseAnswer(raw)
		if problem != "" {
			return answer{}, &refusal{codeIO, "the program that listens on " + socket + " " + problem + "; are fairlead-cni and fairlead-agent of the same release?"}
		}
		if done {
			return a, nil
		}
		var n int
		raw, n, err = readMore(fd, raw)
		switch {
		case err == syscall.EAGAIN:
			return answer{}, &refusal{absent, "fairlead-agent did not answer " + command + " within " + decimal(timeout) + " s (socket " + socket + "); see its log and status; the runtime will try again"}
		case err != nil || n == 0:
			return answer{}, &refusal{absent, "fairlead-agent ended while it served " + command + " (socket " + socket + ": " + cause(sent, err) + "); it will be restarted and the runtime will try again"}
		}
	}
}

// cause names why an answer is missing: the first error there was, or none.
func cause(errs ...error) string {
	for _, err := range errs {
		if err != nil {
			return err.Error()
		}
	}
	return "connection closed before the end of the answer"
}

// dial connects to the agent; timeout, in seconds, then bounds every read and write.
func dial(path string, timeout int) (fd int, err error) {
	fd, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			syscall.Close(fd)
		}
	}()
	// connect(2) waits, as long as a write may, while the agent's backlog is full.
	limit := syscall.NsecToTimeval(int64(timeout) * 1e9)
	for _, option := range [...]int{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		if err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, option, &limit); err != nil {
			return fd, err
		}
	}
	for {
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
		if err != syscall.EINTR {
			return fd, err
		}
	}
}

// dialMessage says why there is no agent, and what to do.
func dialMessage(socket string, err error) string {
	why := "(dial " + socket + ": " + err.Error() + ")"
	switch err {
	case syscall.ENOENT, syscall.ECONNREFUSED, syscall.ENOTDIR:
		return "fairlead-agent is not running on this node " + why + "; start it, the runtime will try again"
	case syscall.EACCES, syscall.EPERM:
		return "fairlead-agent cannot be reached " + why + "; the plugin must run as root"
	case syscall.EAGAIN:
		return "fairlead-agent accepts no connection " + why + "; is it stopped? the runtime will try again"
	}
	return "fairlead-agent cannot be reached " + why + "; the runtime will try again"
}

// parseAnswer reads as much of an HTTP response as has arrived. It is done when
// the body is as long as Content-Length says; problem says why it never can be.
func parseAnswer(raw []byte) (a answer, done bool, problem string) {
	end := index(raw, "\r\n\r\n")
	if end < 0 {
		if len(raw) > maxHeader {
			return a, false, "sent a header of more than " + decimal(maxHeader) + " bytes"
		}
		return a, false, ""
	}
	head, body := string(raw[:end+2]), raw[end+4:]
	line, head := cutLine(head)
	if len(line) < 12 || line[:7] != "HTTP/1." || line[8:12] != " 200" {
		return a, false, "answered " + quote(line) + " to a CNI request"
	}
	length, exit := -1, -1
	for head != "" {
		line, head = cutLine(head)
		if value, ok := headerValue(line, "content-length"); ok {
			length = parseDecimal(value)
		}
		if value, ok := headerValue(line, "fairlead-cni-exit"); ok {
			exit = parseDecimal(value)
		}
	}
	switch {
	case length < 0 || length > maxResponse:
		return a, false, "answered without a Content-Length up to " + decimal(maxResponse)
	case exit != 0 && exit != 1:
		return a, false, "answered without a Fairlead-CNI-Exit of 0 or 1"
	case len(body) > length:
		return a, false, "sent more than its Content-Length"
	}
	return answer{body, exit}, len(body) == length, ""
}
