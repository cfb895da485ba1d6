//go:build !linux

package tcp

// state is what a Server has on this platform.
type state struct{ fallback goroutines }

func (s *Server) engine() engine { return &s.fallback }
