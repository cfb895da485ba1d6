//go:build !linux

package tcp

// loops exist on Linux only.
type loops struct{}

func (s *Server) engine() engine { return &s.goroutines }
