package tcp

import (
	"syscall"

	"github.com/sluice-lb/sluice/internal/session"
)

// dialControl has nothing to set here.
var dialControl func(network, address string, c syscall.RawConn) error

// shortage reports whether a call of the net package failed for want of something of
// this host.
func shortage(err error) bool { return session.Shortage(err) }

// gone reports false: the net package tries again by itself when a client has reset the
// connection before it was accepted.
func gone(error) bool { return false }
