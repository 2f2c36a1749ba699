package cniapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// Handler returns the server's edge: it decodes a request, hands it to serve and
// writes the answer. serve is called concurrently; its context ends when the
// plugin goes away (the runtime gave up and killed it) or the server closes.
//
// A request that cannot be decoded is answered with a CNI error, like every
// refusal. Only what no fairlead-cni sends, another path or method, gets a bare
// HTTP status.
func Handler(serve func(context.Context, Request) Response) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+URLPath, func(w http.ResponseWriter, r *http.Request) {
		req, err := decode(w, r)
		if err != nil {
			write(w, Refuse(Error{
				Code: CodeIO,
				Msg:  "fairlead-agent cannot read the plugin's request: " + err.Error() + "; are fairlead-cni and fairlead-agent of the same release?",
			}))
			return
		}
		write(w, serve(r.Context(), req))
	})
	return mux
}

// decode reads one bounded request. Unknown keys are ignored, so that a plugin may
// be newer than its agent.
func decode(w http.ResponseWriter, r *http.Request) (Request, error) {
	var req Request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxRequest)).Decode(&req); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return Request{}, fmt.Errorf("the body has more than %d bytes", tooLarge.Limit)
		}
		return Request{}, fmt.Errorf("decode JSON: %w", err)
	}
	if len(req.Config) > MaxConfig {
		return Request{}, fmt.Errorf("the network configuration has %d bytes, more than %d", len(req.Config), MaxConfig)
	}
	return req, nil
}

// write sends the answer with its length: without it net/http would mark the end
// of a longer body by closing the connection, and so would a crash.
func write(w http.ResponseWriter, resp Response) {
	if len(resp.Stdout) > MaxResponse {
		resp = Refuse(Error{
			Code: CodeInternal,
			Msg:  fmt.Sprintf("the answer has %d bytes, more than the %d that the plugin reads", len(resp.Stdout), MaxResponse),
		})
	}
	exit := "0"
	if resp.Failed {
		exit = "1"
	}
	w.Header().Set(HeaderExit, exit)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(resp.Stdout)))
	// A failed write means that the plugin is gone; the request's context tells
	// serve so, and nobody else is there to be told.
	_, _ = w.Write(resp.Stdout)
}
