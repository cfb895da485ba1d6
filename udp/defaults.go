package udp

import (
	"errors"
	"time"
)

const (
	// maxAttempts is how many backends in a row may refuse a flow before it is
	// given up; as many as a TCP connection is dialled.
	maxAttempts = 4

	// linger is how long a backend that is gone may answer what it was asked
	// before, unless the flow is idle sooner.
	linger = int64(time.Second)
)

// errTried means that maxAttempts backends have refused.
var errTried = errors.New("every backend that was tried refused")

func (s *Server) idleTimeout() time.Duration {
	if s.IdleTimeout == 0 {
		return 250 * time.Millisecond
	}
	return s.IdleTimeout
}

func (s *Server) maxFlows() int {
	if s.MaxFlows == 0 {
		return 16384
	}
	return s.MaxFlows
}

func (s *Server) socketBuffer() int {
	if s.SocketBuffer == 0 {
		return 4 << 20
	}
	return s.SocketBuffer
}

// refund gives one descriptor back to the budget.
func (s *Server) refund() {
	if s.Descriptors != nil {
		s.Descriptors.Give(1)
	}
}
