package udp

import "time"

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
