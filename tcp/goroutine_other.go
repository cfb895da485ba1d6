//go:build !windows

package tcp

import "syscall"

// dialControl has nothing to set here.
var dialControl func(network, address string, c syscall.RawConn) error

// gone reports false: the net package tries again by itself when a client has reset the
// connection before it was accepted.
func gone(error) bool { return false }
