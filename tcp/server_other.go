//go:build !linux

package tcp

// loops exist on Linux only.
type loops struct{}

var _ = &Server{loops: loops{}} // stays zero

func (s *Server) engine() engine { return &s.goroutines }
