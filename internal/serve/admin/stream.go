package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Stream answers one path with bytes that come as they are made, until it is done or
// ctx ends: the one who asked has gone then. Nothing written yet, its error is an
// ordinary Failure; later it is told behind what was written. The note, if there is one,
// is for the person who asked.
type Stream func(ctx context.Context, query url.Values, w io.Writer) (note string, err error)

const (
	// stall is how long a reader of a Stream may take nothing before it is given up.
	stall = 30 * time.Second
	// noteTrailer and errorTrailer end a stream.
	noteTrailer  = "Fairlead-Note"
	errorTrailer = "Fairlead-Error"
)

// ErrStopped says that a stream ended because ctx did, not because it was over.
var ErrStopped = errors.New("stopped")

func (s *Server) stream(w http.ResponseWriter, r *http.Request, f Stream) {
	out := &flusher{w: w, control: http.NewResponseController(w)}
	note, err := f(r.Context(), r.URL.Query(), out)
	if err != nil && !out.begun {
		write(w, http.StatusInternalServerError, Failure{Error: err.Error()})
		return
	}
	out.begin()
	if note != "" {
		w.Header().Set(http.TrailerPrefix+noteTrailer, url.QueryEscape(note))
	}
	if err != nil {
		w.Header().Set(http.TrailerPrefix+errorTrailer, url.QueryEscape(err.Error()))
	}
	out.limit()
}

// flusher sends what is written at once, and gives up on a reader that takes nothing.
type flusher struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

func (f *flusher) begin() {
	if !f.begun {
		f.begun = true
		f.w.Header().Set("Content-Type", "application/octet-stream")
		f.w.WriteHeader(http.StatusOK)
		_ = f.control.Flush() // without it, a stream of nothing would have no end to say something at
	}
}

// limit bounds the next writes. A connection without deadlines is one that cannot stall.
func (f *flusher) limit() { _ = f.control.SetWriteDeadline(time.Now().Add(stall)) }

func (f *flusher) Write(p []byte) (int, error) {
	f.begin()
	f.limit()
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.control.Flush()
}

// Stream asks for a path and copies the answer to w as it comes, whether a Stream or a
// Handler gives it. It returns the note of a Stream, and ErrStopped if ctx has ended it.
func (c *Client) Stream(ctx context.Context, path string, w io.Writer) (note string, err error) {
	answer, err := c.ask(ctx, path)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(w, answer.Body); err != nil {
		if ctx.Err() != nil {
			return "", ErrStopped
		}
		return "", fmt.Errorf("read the agent's answer to %s: %w", path, err)
	}
	note, err = url.QueryUnescape(answer.Trailer.Get(noteTrailer))
	if err != nil {
		return "", fmt.Errorf("read the end of the agent's answer to %s: %w", path, err)
	}
	failure, err := url.QueryUnescape(answer.Trailer.Get(errorTrailer))
	switch {
	case err != nil:
		return note, fmt.Errorf("read the end of the agent's answer to %s: %w", path, err)
	case failure != "":
		return note, errors.New(failure)
	}
	return note, nil
}

// ask returns the answer to a path, if that is not a Failure. Its body is to be closed.
func (c *Client) ask(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent for %s: %w", path, err)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		page, _, _ := strings.Cut(path, "?")
		return nil, fmt.Errorf("ask the agent for %s (does fairlead-agent run on that node?): %w", page, errors.Unwrap(err))
	}
	if answer.StatusCode == http.StatusOK {
		return answer, nil
	}
	defer answer.Body.Close()
	var f Failure
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&f); err != nil {
		return nil, fmt.Errorf("ask the agent for %s: status %s", path, answer.Status)
	}
	return nil, errors.New(f.Error)
}
