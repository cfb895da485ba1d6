package sctp

import "time"

var defaultDialTimeouts = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

func (s *Server) dialTimeouts() []time.Duration {
	if len(s.DialTimeouts) == 0 {
		return defaultDialTimeouts
	}
	return s.DialTimeouts
}

func (s *Server) maxAssociations() int {
	if s.MaxAssociations == 0 {
		return 65536
	}
	return s.MaxAssociations
}

func (s *Server) idlePackets() time.Duration {
	if s.IdleTimeout == 0 {
		return 15 * time.Minute
	}
	return s.IdleTimeout
}

func (s *Server) rawBuffer() int {
	if s.SocketBuffer == 0 {
		return 4 << 20
	}
	return s.SocketBuffer
}

func (s *Server) maxDials() int64 {
	if s.MaxDials == 0 {
		return 4096
	}
	return int64(s.MaxDials)
}

func (s *Server) maxStreams() uint16 {
	if s.MaxStreams == 0 {
		return 1024
	}
	return uint16(min(s.MaxStreams, 65535))
}

func (s *Server) maxMessage() int {
	if s.MaxMessage == 0 {
		return 1 << 20
	}
	return s.MaxMessage
}
