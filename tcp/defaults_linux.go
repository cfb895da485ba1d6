package tcp

func (s *Server) backlog() int {
	if s.Backlog == 0 {
		return 4096
	}
	return s.Backlog
}
