package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// translate turns an error of the client into one of the API's. ctx is the
// caller's: if it has ended, that is the reason.
func (s *Store) translate(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return datastore.ErrClosed()
	case ctx.Err() != nil:
		return fmt.Errorf("etcd: %s: %w", what, ctx.Err())
	case errors.Is(err, rpctypes.ErrCompacted):
		return apierrors.NewResourceExpired(fmt.Sprintf("etcd: %s: the history was compacted: list again", what))
	}
	where := fmt.Sprintf("etcd: %s at %s", what, strings.Join(s.config.Endpoints, ", "))
	if code := errorCode(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		if refused := s.refusal.err(); refused != nil {
			return apierrors.NewUnauthorized(where + ": " + refusedTLS(refused))
		}
	}
	msg := where + ": " + plain(err)
	if errors.Is(err, rpctypes.ErrRequestTooLarge) || strings.Contains(err.Error(), "message larger than max") {
		return apierrors.NewRequestEntityTooLargeError(msg)
	}
	switch errorCode(err) {
	case codes.DeadlineExceeded, codes.Canceled:
		return apierrors.NewTimeoutError(fmt.Sprintf("%s: no answer within %s", msg, s.config.RequestTimeout), 1)
	case codes.Unavailable:
		return apierrors.NewServiceUnavailable(msg + s.advice(msg))
	case codes.ResourceExhausted, codes.Aborted:
		return apierrors.NewServiceUnavailable(msg)
	case codes.Unauthenticated:
		return apierrors.NewUnauthorized(msg)
	case codes.PermissionDenied:
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(msg))
	}
	if errors.Is(err, rpctypes.ErrUserEmpty) {
		return apierrors.NewUnauthorized(msg + ": this etcd asks who its clients are: give a certificate (cert and key) whose common name is one of its users")
	}
	return apierrors.NewInternalError(errors.New(msg))
}

// refusedTLS says why a TLS connection was refused, by either side, and what to look at.
func refusedTLS(err error) string {
	if errors.As(err, new(tls.RecordHeaderError)) {
		return "what answers there does not speak TLS: write http:// if that is meant, or correct the port"
	}
	return fmt.Sprintf("the TLS connection was refused: %v: check the files that ca, cert and key name, and that the server's certificate names the endpoint", err)
}

// plain is an error of the client without the words that gRPC wraps it into.
func plain(err error) string {
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	if _, desc, found := strings.Cut(text, "desc = "); found {
		if inner, err := strconv.Unquote(desc); err == nil {
			text = inner
		}
	}
	return strings.TrimPrefix(strings.TrimPrefix(text, "transport: "), "Error while dialing: ")
}

// advice is what to look at when nobody answers.
func (s *Store) advice(msg string) string {
	answered := slices.ContainsFunc([]string{"server preface", "http2:", "EOF"}, func(words string) bool { return strings.Contains(msg, words) })
	switch {
	case !answered:
		return ": is etcd running, and can this host reach it there?"
	case strings.HasPrefix(s.config.Endpoints[0], "https:"):
		return ": what answers there is no etcd, or does not speak TLS: correct the port, or write http://"
	}
	return ": what answers there is no etcd, or speaks TLS: correct the port, or write https://"
}

func errorCode(err error) codes.Code {
	var typed rpctypes.EtcdError
	switch {
	case errors.As(err, &typed):
		return typed.Code()
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(err)
}
