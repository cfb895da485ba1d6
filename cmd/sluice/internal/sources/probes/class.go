package probes

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/sluice-lb/sluice/internal/session"
)

// failure is why a check has failed, in words of our own.
type failure string

func (f failure) Error() string { return string(f) }

const (
	errTimeout   failure = "no answer in time"
	errRefused   failure = "connection refused"
	errClosed    failure = "the connection was closed without an answer"
	errNoRoute   failure = "no route to the endpoint"
	errTLS       failure = "TLS handshake failed"
	errMalformed failure = "the answer is none of this protocol"
)

// classOf returns the class of an error. Its text is not passed on: it may quote what the endpoint has answered, which
// the tenant could not read otherwise, or credentials of the probe.
func classOf(err error) error {
	var own failure
	var alert tls.AlertError
	var record tls.RecordHeaderError
	is := func(all ...error) bool {
		for _, target := range all {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil || session.Shortage(err):
		return err
	case errors.As(err, &own):
		return own
	case is(context.DeadlineExceeded, os.ErrDeadlineExceeded, syscall.ETIMEDOUT):
		return errTimeout
	case is(syscall.ECONNREFUSED):
		return errRefused
	case is(syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed):
		return errClosed
	case is(syscall.EHOSTUNREACH, syscall.ENETUNREACH):
		return errNoRoute
	case errors.As(err, &alert) || errors.As(err, &record):
		return errTLS
	}
	return errMalformed
}
