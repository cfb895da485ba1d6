package tcp

import "time"

var defaultDialTimeouts = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

func (s *Server) dialTimeouts() []time.Duration {
	if len(s.DialTimeouts) == 0 {
		return defaultDialTimeouts
	}
	return s.DialTimeouts
}

func (s *Server) maxDials() int64 {
	if s.MaxDials == 0 {
		return 4096
	}
	return int64(s.MaxDials)
}

func (s *Server) keepAlive() time.Duration {
	if s.KeepAlive == 0 {
		return 15 * time.Second
	}
	return s.KeepAlive
}
