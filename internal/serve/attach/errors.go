package attach

import (
	"errors"
	"fmt"
	"strings"
)

// Reason says what a runtime can do about an Error.
type Reason uint8

// The reasons.
const (
	// TryAgain: the same request may succeed later.
	TryAgain Reason = iota
	// InvalidRequest: the runtime's parameters are wrong.
	InvalidRequest
	// Refused: the parameters are fine, but what the pod, its namespace or the
	// network configuration asks for cannot be had.
	Refused
	// UnknownAttachment: there is no such attachment.
	UnknownAttachment
	// Differs: the attachment is not as it should be.
	Differs
)

// Error is why a call failed. Every error of Add, Del, Check, Collect and Ready is one.
type Error struct {
	Reason Reason
	// Message is one line: what was tried, on what, and what to do next.
	Message string
	// Err is the cause, if there is one.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap implements the contract of errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the Reason of an error; any other error is TryAgain.
func ReasonOf(err error) Reason {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Reason
	}
	return TryAgain
}

func failf(reason Reason, err error, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...), Err: err}
}

// oneLine joins what is not nil with semicolons; errors.Is sees all of them.
func oneLine(errs ...error) error {
	joined := errors.Join(errs...)
	if joined == nil {
		return nil
	}
	return &line{joined}
}

type line struct{ error }

func (l *line) Error() string { return strings.ReplaceAll(l.error.Error(), "\n", "; ") }
func (l *line) Unwrap() error { return l.error }
