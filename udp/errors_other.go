//go:build !linux && !windows

package udp

import "net"

// reportRefusals does nothing.
func reportRefusals(*net.UDPConn) {}

// tooLong reports false: which errors mean what is not known here.
func tooLong(error) bool { return false }

// noPort reports false, too.
func noPort(error) bool { return false }

// ofHost reports false, too.
func ofHost(error) bool { return false }
