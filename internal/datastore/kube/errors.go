package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// errAbsent says that the server does not know a kind.
var errAbsent = errors.New("the API server does not know the kind")

// translate turns an error of client-go into one that the contract names. ctx is the
// caller's: if it has ended, that is the reason.
func (s *Store) translate(ctx context.Context, x *session, r *datastore.Resource, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return datastore.ErrClosed()
	case ctx.Err() != nil:
		return fmt.Errorf("kube: %s: %w", what, ctx.Err())
	}
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		return s.translateStatus(x, r, what, status)
	}
	msg := fmt.Sprintf("kube: %s at %s: %v", what, x.server, err)
	switch {
	case refusedTLS(err):
		return s.unauthorized(msg, x)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), isTimeout(err):
		return apierrors.NewTimeoutError(fmt.Sprintf("%s: no answer within %s", msg, s.config.RequestTimeout), 1)
	}
	return apierrors.NewServiceUnavailable(msg)
}

// translateStatus passes on what the server says, in the contract's words.
func (s *Store) translateStatus(x *session, r *datastore.Resource, what string, status *apierrors.StatusError) error {
	msg := fmt.Sprintf("kube: %s at %s: %v", what, x.server, status)
	code := status.Status().Code
	switch {
	case apierrors.IsResourceExpired(status), apierrors.IsGone(status):
		return apierrors.NewResourceExpired(msg)
	case apierrors.IsUnauthorized(status):
		return s.unauthorized(msg, x)
	case apierrors.IsForbidden(status):
		out := *status
		out.ErrStatus.Message = msg + ": RBAC or an admission policy does not allow this account to do that"
		return &out
	case unknownResource(status):
		return apierrors.NewServiceUnavailable(absent(r, msg))
	case lost(status), code == http.StatusTooManyRequests, code >= http.StatusBadGateway,
		apierrors.IsServerTimeout(status), code == http.StatusInternalServerError && strings.Contains(status.Error(), "etcdserver"):
		return apierrors.NewServiceUnavailable(msg)
	}
	return status
}

func absent(r *datastore.Resource, msg string) string {
	if r == nil {
		return msg
	}
	return fmt.Sprintf("%s: %s.%s %s is not installed there: apply its CustomResourceDefinition", msg, r.Plural, r.GroupVersion.Group, r.GroupVersion.Version)
}

// unauthorized says whose fault it may be, and that nothing must be restarted.
func (s *Store) unauthorized(msg string, x *session) error {
	msg = fmt.Sprintf("%s: the credentials are not accepted (%s): they have expired or are not of this cluster; they are read again by themselves once they are renewed", msg, x.credentials)
	if broken := s.access.refused(); broken != nil {
		msg = fmt.Sprintf("%s; the files as they are now cannot be used: %v", msg, broken)
	}
	return apierrors.NewUnauthorized(msg)
}

// unknownResource tells "there is no such kind" from "there is no such object": only the
// latter is told by a Status of the server.
func unknownResource(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// lost tells the end of a watch's connection, which client-go reports as a Status.
func lost(err error) bool { return apierrors.HasStatusCause(err, "ClientWatchDecoding") }

// tooLarge tells that the server has not come to the resourceVersion that was asked for.
func tooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// refusedTLS tells a certificate that one side does not accept from a broken connection.
// "remote error" is how crypto/tls reports an alert of the other side.
func refusedTLS(err error) bool {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		op        *net.OpError
	)
	return errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &verify) ||
		errors.As(err, &op) && op.Op == "remote error"
}
