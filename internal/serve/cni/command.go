package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/apply"
	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

// Attachments does the work; *attach.Service is one.
type Attachments interface {
	Add(ctx context.Context, r attach.Request) (attach.Result, error)
	Del(ctx context.Context, containerID, ifname string) error
	Check(ctx context.Context, r attach.Request, want attach.Attached) error
	Collect(ctx context.Context, network string, valid []attach.Key) error
	// Ready returns why ADD cannot be served at all.
	Ready() error
}

// PortChecker looks at the kernel.
type PortChecker interface {
	// CheckPort says how the port with that ID differs from what was applied.
	CheckPort(ctx context.Context, id string) ([]apply.Difference, error)
}

// codeDiffers answers CHECK: the attachment is not as ADD left it. Codes from 100
// are a plugin's own (CNI specification 1.1.0, section 5).
const codeDiffers cniapi.Code = 100

// Handler answers CNI commands. The zero value of what is optional does nothing.
type Handler struct {
	Attachments Attachments
	Ports       PortChecker
	Log         *slog.Logger
	// Observe is called once for every command, with the code of the answer (0 for
	// success). It is optional.
	Observe func(command cniapi.Command, code cniapi.Code, took time.Duration)
}

// Serve answers one command. It may be called concurrently.
func (h *Handler) Serve(ctx context.Context, r cniapi.Request) cniapi.Response {
	start := time.Now()
	version, stdout, err := h.serve(ctx, r)
	took := time.Since(start)
	if err == nil {
		h.observe(r.Command, 0, took)
		return cniapi.Response{Stdout: stdout}
	}
	e := errorOf(err, r.Command)
	e.CNIVersion = version
	h.observe(r.Command, e.Code, took)
	level := slog.LevelWarn
	if e.Code == cniapi.CodeInternal {
		level = slog.LevelError
	}
	h.Log.Log(ctx, level, "CNI command refused", "command", shorten(string(r.Command)), "container", shorten(r.ContainerID), "args", shorten(r.Args), "code", int(e.Code), "msg", e.Msg, "details", e.Details, "duration", took)
	return cniapi.Refuse(e)
}

func (h *Handler) observe(command cniapi.Command, code cniapi.Code, took time.Duration) {
	if h.Observe == nil {
		return
	}
	switch command {
	case cniapi.Add, cniapi.Del, cniapi.Check, cniapi.GC, cniapi.Status:
	default:
		command = "unknown" // whoever counts by command must not be flooded
	}
	h.Observe(command, code, took)
}

// serve returns the version to answer an error in, empty if it is not known.
func (h *Handler) serve(ctx context.Context, r cniapi.Request) (version string, stdout []byte, err error) {
	run := map[cniapi.Command]func(context.Context, cniapi.Request, *config) ([]byte, error){
		cniapi.Add: h.add, cniapi.Del: h.del, cniapi.Check: h.check, cniapi.GC: h.collect, cniapi.Status: h.status,
	}[r.Command]
	if run == nil {
		return "", nil, refuse(cniapi.CodeInvalidEnvironment, nil, "CNI_COMMAND is %q; it must be ADD, DEL, CHECK, GC, STATUS or VERSION", shorten(string(r.Command)))
	}
	c, err := parseConfig(r.Command, r.Config)
	if err == nil {
		stdout, err = run(ctx, r, c)
	}
	if c != nil {
		version = c.version
	}
	return version, stdout, err
}

func (h *Handler) add(ctx context.Context, r cniapi.Request, c *config) ([]byte, error) {
	req, err := request(r, c)
	if err != nil {
		return nil, err
	}
	a, err := h.Attachments.Add(ctx, req)
	if err != nil {
		return nil, err
	}
	out, err := result(c, a)
	if err != nil {
		return nil, refuse(cniapi.CodeInternal, err, "the attachment %s was made, but its result cannot be written in CNI %s", a.ID, c.version)
	}
	return out, nil
}

// request checks that nothing is missing; package attach checks what it is.
func request(r cniapi.Request, c *config) (attach.Request, error) {
	if err := required("CNI_CONTAINERID", r.ContainerID, "CNI_NETNS", r.Netns, "CNI_IFNAME", r.IfName); err != nil {
		return attach.Request{}, err
	}
	pod, err := podOf(r.Args)
	if err != nil {
		return attach.Request{}, err
	}
	return attach.Request{
		ContainerID: r.ContainerID, Interface: r.IfName, Netns: r.Netns, Pod: pod, Standalone: c.standalone,
		Network: c.name, Subnet: c.subnet, Want: c.ips,
	}, nil
}

// required takes names and values in turn.
func required(pairs ...string) error {
	var missing []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			missing = append(missing, pairs[i])
		}
	}
	if len(missing) > 0 {
		return refuse(cniapi.CodeInvalidEnvironment, nil, "the environment lacks %s", strings.Join(missing, ", "))
	}
	return nil
}

func (h *Handler) del(ctx context.Context, r cniapi.Request, _ *config) ([]byte, error) {
	if err := required("CNI_CONTAINERID", r.ContainerID, "CNI_IFNAME", r.IfName); err != nil {
		return nil, err
	}
	return nil, h.Attachments.Del(ctx, r.ContainerID, r.IfName)
}

// check compares what the runtime believes, what was decided, and what the kernel
// has.
func (h *Handler) check(ctx context.Context, r cniapi.Request, c *config) ([]byte, error) {
	req, err := request(r, c)
	if err != nil {
		return nil, err
	}
	if c.previous == nil {
		return nil, refuse(cniapi.CodeInvalidConfig, nil, "CHECK needs prevResult in the network configuration")
	}
	want, ok := attached(c.previous, r.IfName, r.Netns)
	if !ok {
		return nil, refuse(cniapi.CodeInvalidConfig, nil, "prevResult names no interface %s in %s", shorten(r.IfName), shorten(r.Netns))
	}
	if err := h.Attachments.Check(ctx, req, want); err != nil {
		return nil, err
	}
	id := attach.Key{ContainerID: r.ContainerID, Interface: r.IfName}.ID()
	differences, err := h.Ports.CheckPort(ctx, id)
	if err != nil {
		return nil, refuse(cniapi.CodeTryAgain, err, "check %s: look at the kernel", id)
	}
	if len(differences) == 0 {
		return nil, nil
	}
	details := make([]string, 0, len(differences))
	for _, d := range differences {
		details = append(details, difference(d))
	}
	return nil, refuse(codeDiffers, errors.New(strings.Join(details, "; ")), "check %s: the kernel differs from what was applied in %d things; the agent repairs them by itself, check again", id, len(details))
}

func difference(d apply.Difference) string {
	text := d.Subsystem + " " + d.Object + " " + d.Problem
	if d.Want != "" || d.Got != "" {
		text += fmt.Sprintf(" (want %q, got %q)", d.Want, d.Got)
	}
	return text
}

func (h *Handler) collect(ctx context.Context, _ cniapi.Request, c *config) ([]byte, error) {
	return nil, h.Attachments.Collect(ctx, c.name, c.valid)
}

func (h *Handler) status(context.Context, cniapi.Request, *config) ([]byte, error) {
	if err := h.Attachments.Ready(); err != nil {
		return nil, refuse(cniapi.CodeUnavailable, nil, "fairlead-agent cannot serve ADD: %v", err)
	}
	return nil, nil
}

// codes of what package attach says.
var codes = map[attach.Reason]cniapi.Code{
	attach.TryAgain:          cniapi.CodeTryAgain,
	attach.InvalidRequest:    cniapi.CodeInvalidEnvironment,
	attach.Refused:           cniapi.CodeInvalidConfig,
	attach.UnknownAttachment: cniapi.CodeUnknownContainer,
	attach.Differs:           codeDiffers,
}

// errorOf turns whatever went wrong into a CNI error.
func errorOf(err error, command cniapi.Command) cniapi.Error {
	if e := (cniapi.Error{}); errors.As(err, &e) {
		return e
	}
	if e := (*attach.Error)(nil); errors.As(err, &e) {
		return cniapi.Error{Code: codes[e.Reason], Msg: oneLine(e.Error())}
	}
	return cniapi.Error{Code: cniapi.CodeInternal, Msg: oneLine(fmt.Sprintf("%s failed: %v", command, err))}
}
