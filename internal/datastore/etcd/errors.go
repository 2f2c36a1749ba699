package etcd

import (
	"context"
	"errors"
	"fmt"
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
	msg := fmt.Sprintf("etcd: %s at %s: %v", what, strings.Join(s.config.Endpoints, ", "), err)
	if code := errorCode(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		if refused := s.refusal.err(); refused != nil {
			return apierrors.NewUnauthorized(fmt.Sprintf("%s: the TLS connection was refused: %v: check the files that ca, cert and key name, and that the server's certificate names the endpoint", msg, refused))
		}
	}
	if errors.Is(err, rpctypes.ErrRequestTooLarge) || strings.Contains(err.Error(), "message larger than max") {
		return apierrors.NewRequestEntityTooLargeError(msg)
	}
	switch errorCode(err) {
	case codes.DeadlineExceeded, codes.Canceled:
		return apierrors.NewTimeoutError(fmt.Sprintf("%s: no answer within %s", msg, s.config.RequestTimeout), 1)
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return apierrors.NewServiceUnavailable(msg)
	case codes.Unauthenticated:
		return apierrors.NewUnauthorized(msg)
	case codes.PermissionDenied:
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(msg))
	}
	return apierrors.NewInternalError(errors.New(msg))
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
