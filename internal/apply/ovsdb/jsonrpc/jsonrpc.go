package jsonrpc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge says that a message is larger than the reader takes. The stream
// cannot be used any more.
var ErrTooLarge = errors.New("the message is larger than the limit")

// ErrSyntax says that what arrived is no JSON-RPC message. The stream cannot be
// used any more.
var ErrSyntax = errors.New("this is no JSON-RPC message")

// Message is a request (Method, Params, ID), a notification (a request whose ID is
// null) or a response (Result, Error, ID).
type Message struct {
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
	ID     json.RawMessage `json:"id,omitempty"`
}

// Request encodes a request. params becomes an array.
func Request(id uint64, method string, params ...any) ([]byte, error) {
	return encode(method, params, &id)
}

// Notification encodes a request that nobody answers.
func Notification(method string, params ...any) ([]byte, error) {
	return encode(method, params, nil)
}

func encode(method string, params []any, id *uint64) ([]byte, error) {
	if params == nil {
		params = []any{}
	}
	b, err := json.Marshal(struct {
		Method string  `json:"method"`
		Params []any   `json:"params"`
		ID     *uint64 `json:"id"`
	}{method, params, id})
	if err != nil {
		return nil, fmt.Errorf("encode a %s request: %w", method, err)
	}
	return b, nil
}

// Response encodes the answer to the request with the ID.
func Response(id, result json.RawMessage) ([]byte, error) {
	b, err := json.Marshal(struct {
		Result json.RawMessage  `json:"result"`
		Error  *json.RawMessage `json:"error"`
		ID     json.RawMessage  `json:"id"`
	}{result, nil, id})
	if err != nil {
		return nil, fmt.Errorf("encode a response: %w", err)
	}
	return b, nil
}

// Decode decodes one message.
func Decode(frame []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(frame, &m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	return m, nil
}

// Null reports whether a part of a message is absent or null.
func Null(part json.RawMessage) bool { return len(part) == 0 || string(part) == "null" }

// Reader cuts a stream into messages.
type Reader struct {
	from  io.Reader
	limit int
	buf   []byte
	// begin and end bound what was read and not yet returned.
	begin, end int
}

const firstBuffer = 16 << 10

// NewReader makes a Reader that takes messages of at most limit bytes.
func NewReader(from io.Reader, limit int) *Reader {
	return &Reader{from: from, limit: limit, buf: make([]byte, min(firstBuffer, limit))}
}

// Next returns the next message's bytes, which the caller owns. The error is io.EOF
// at the end of a stream between two messages.
func (r *Reader) Next() ([]byte, error) {
	var s scanner
	for at := r.begin; ; {
		for ; at < r.end; at++ {
			done, err := s.step(r.buf[at])
			if err != nil {
				return nil, err
			}
			if s.depth == 0 && !done {
				r.begin = at + 1 // white space between messages
			}
			if !done {
				continue
			}
			frame := append([]byte(nil), r.buf[r.begin:at+1]...)
			r.begin = at + 1
			r.shrink()
			return frame, nil
		}
		at -= r.begin
		if err := r.fill(); err != nil {
			if errors.Is(err, io.EOF) && s.depth > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		at += r.begin
	}
}

// fill reads more behind what is there, making room first.
func (r *Reader) fill() error {
	if r.begin > 0 {
		copy(r.buf, r.buf[r.begin:r.end])
		r.begin, r.end = 0, r.end-r.begin
	}
	if r.end == len(r.buf) {
		if r.end >= r.limit {
			return fmt.Errorf("read a message: %w of %d bytes", ErrTooLarge, r.limit)
		}
		grown := make([]byte, min(2*len(r.buf), r.limit))
		copy(grown, r.buf)
		r.buf = grown
	}
	n, err := r.from.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// shrink gives back the memory that one large message took.
func (r *Reader) shrink() {
	if held := r.end - r.begin; len(r.buf) > 64*firstBuffer && held < firstBuffer {
		small := make([]byte, firstBuffer)
		copy(small, r.buf[r.begin:r.end])
		r.buf, r.begin, r.end = small, 0, held
	}
}

// scanner follows the nesting of a JSON object.
type scanner struct {
	depth            int
	inString, escape bool
}

// step takes a byte and reports whether it ends the object.
func (s *scanner) step(c byte) (bool, error) {
	switch {
	case s.inString:
		switch {
		case s.escape:
			s.escape = false
		case c == '\\':
			s.escape = true
		case c == '"':
			s.inString = false
		}
	case c == '{' || c == '[' && s.depth > 0:
		s.depth++
	case (c == '}' || c == ']') && s.depth > 0:
		s.depth--
		return s.depth == 0, nil
	case s.depth == 0:
		if c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return false, fmt.Errorf("%w: it begins with %q", ErrSyntax, c)
		}
	case c == '"':
		s.inString = true
	}
	return false, nil
}
