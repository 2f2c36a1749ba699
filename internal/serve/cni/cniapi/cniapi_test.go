package cniapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

func post(t *testing.T, serve func(context.Context, cniapi.Request) cniapi.Response, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	cniapi.Handler(serve).ServeHTTP(w, r)
	return w
}

func TestHandlerHandsOverTheRequestAndWritesTheAnswer(t *testing.T) {
	want := cniapi.Request{
		Command: cniapi.Add, ContainerID: "c", Netns: "/n", IfName: "eth0", Args: "A=b", Path: "/opt", NetnsOverride: "1",
		Config: []byte("\x00{"),
	}
	var got cniapi.Request
	w := post(t, func(_ context.Context, r cniapi.Request) cniapi.Response {
		got = r
		return cniapi.Response{Stdout: []byte("{}\n")}
	}, "POST", "/cni", `{"command":"ADD","containerID":"c","netns":"/n","ifName":"eth0","args":"A=b","path":"/opt","netnsOverride":"1","config":"AHs=","later":[1]}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	wantHeader := http.Header{"Content-Type": {"application/json"}, "Content-Length": {"3"}, cniapi.HeaderExit: {"0"}}
	if diff := cmp.Diff(wantHeader, w.Header()); diff != "" || w.Code != 200 || w.Body.String() != "{}\n" {
		t.Errorf("status %d, body %q, header (-want +got):\n%s", w.Code, w.Body, diff)
	}
}

func TestHandlerRefuses(t *testing.T) {
	large := strings.Repeat("A", 4*(cniapi.MaxConfig/3)+8)
	tests := []struct{ name, body, want string }{
		{"no JSON", "hello", "decode JSON"},
		{"no body", "", "decode JSON"},
		{"another type", `{"command":1}`, "decode JSON"},
		{"no base64", `{"config":"%"}`, "decode JSON"},
		{"a configuration over the limit", `{"config":"` + large + `"}`, "more than 1048576"},
		{"a body over the limit", `{"args":"` + strings.Repeat("a", cniapi.MaxRequest) + `"}`, "more than 8388608"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := post(t, func(context.Context, cniapi.Request) cniapi.Response {
				t.Error("the request was served")
				return cniapi.Response{}
			}, "POST", "/cni", tt.body)
			var got cniapi.Error
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatalf("body %q: %v", w.Body, err)
			}
			if w.Code != 200 || w.Header().Get(cniapi.HeaderExit) != "1" || got.Code != cniapi.CodeIO || !strings.Contains(got.Msg, tt.want) {
				t.Errorf("status %d, exit %s, %+v; want 200, 1, code 5 and %q", w.Code, w.Header().Get(cniapi.HeaderExit), got, tt.want)
			}
		})
	}
}

func TestHandlerServesOnePathAndMethod(t *testing.T) {
	for request, want := range map[string]int{"GET /cni": 405, "POST /": 404, "POST /cni/": 404} {
		method, path, _ := strings.Cut(request, " ")
		w := post(t, func(context.Context, cniapi.Request) cniapi.Response {
			t.Errorf("%s was served", request)
			return cniapi.Response{}
		}, method, path, "{}")
		if w.Code != want {
			t.Errorf("%s: status %d, want %d", request, w.Code, want)
		}
	}
}

func TestHandlerNeverExceedsWhatThePluginReads(t *testing.T) {
	w := post(t, func(context.Context, cniapi.Request) cniapi.Response {
		return cniapi.Response{Stdout: make([]byte, cniapi.MaxResponse+1)}
	}, "POST", "/cni", "{}")
	var got cniapi.Error
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Code != cniapi.CodeInternal {
		t.Errorf("body %.80q (%v), want an error object with code %d", w.Body, err, cniapi.CodeInternal)
	}
}

// A runtime reads our error objects with this type.
func TestErrorIsTheSpecifications(t *testing.T) {
	e := cniapi.Error{CNIVersion: "0.4.0", Code: cniapi.CodeTryAgain, Msg: "m", Details: "d"}
	var got cnitypes.Error
	if err := json.Unmarshal(e.JSON(), &got); err != nil {
		t.Fatal(err)
	}
	want := cnitypes.Error{Code: cnitypes.ErrTryAgainLater, Msg: "m", Details: "d"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := string(e.JSON()), `{"cniVersion":"0.4.0","code":11,"msg":"m","details":"d"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := string(cniapi.Error{Code: 4, Msg: "m"}.JSON()), `{"cniVersion":"1.1.0","code":4,"msg":"m"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(e), "m; d (CNI error 11)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	codes := map[cniapi.Code]uint{
		cniapi.CodeIncompatibleVersion: cnitypes.ErrIncompatibleCNIVersion,
		cniapi.CodeUnsupportedField:    cnitypes.ErrUnsupportedField,
		cniapi.CodeUnknownContainer:    cnitypes.ErrUnknownContainer,
		cniapi.CodeInvalidEnvironment:  cnitypes.ErrInvalidEnvironmentVariables,
		cniapi.CodeIO:                  cnitypes.ErrIOFailure,
		cniapi.CodeDecode:              cnitypes.ErrDecodingFailure,
		cniapi.CodeInvalidConfig:       cnitypes.ErrInvalidNetworkConfig,
		cniapi.CodeTryAgain:            cnitypes.ErrTryAgainLater,
		cniapi.CodeUnavailable:         cnitypes.ErrPluginNotAvailable,
		cniapi.CodeLimitedConnectivity: cnitypes.ErrLimitedConnectivity,
		cniapi.CodeInternal:            cnitypes.ErrInternal,
	}
	for ours, theirs := range codes {
		if uint(ours) != theirs {
			t.Errorf("code %d, want %d", ours, theirs)
		}
	}
}

func TestRefuse(t *testing.T) {
	e := cniapi.Error{Code: cniapi.CodeInvalidConfig, Msg: "m"}
	want := cniapi.Response{Stdout: e.JSON(), Failed: true}
	if diff := cmp.Diff(want, cniapi.Refuse(e)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
