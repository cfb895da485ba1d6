package testbed

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Server is a small server inside a [Host]. Close it before its Testbed.
type Server struct {
	Addr netip.AddrPort // that it listens on, with the port it got for port 0

	socket io.Closer // the listener or datagram socket
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // being served
	closed bool
}

// EchoTCP sends back what it is sent until the client's end of data, and then
// ends its own. The address is as for [Host.Listen]; ":7" means port 7 of all
// addresses of both families.
func (h *Host) EchoTCP(address string) (*Server, error) {
	return h.serveTCP(address, func(c net.Conn) { io.Copy(c, c) }) // an error is the client's to see
}

// WhoTCP sends the host's name and a newline, and ends its data. It reads, and
// ignores, what the client sends until the client's end of data: to close with
// bytes unread would be a reset, which may destroy the answer on its way
// (RFC 1122 section 4.2.2.13).
func (h *Host) WhoTCP(address string) (*Server, error) {
	return h.serveTCP(address, func(c net.Conn) {
		io.WriteString(c, h.Name+"\n")
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	})
}

// EchoUDP sends each datagram, of up to 65,535 bytes, back to where it came from.
// On a host with several addresses give it one of them: a reply leaves from the
// address that the kernel picks, not from the one that was asked.
func (h *Host) EchoUDP(address string) (*Server, error) {
	return h.serveUDP(address, func(request []byte, _ netip.AddrPort) []byte { return request })
}

// WhoUDP answers each datagram with the host's name. See [Host.EchoUDP] about
// addresses.
func (h *Host) WhoUDP(address string) (*Server, error) {
	name := []byte(h.Name)
	return h.serveUDP(address, func([]byte, netip.AddrPort) []byte { return name })
}

// PeerTCP is [Host.WhoTCP] that also sends the client's address as the server sees it:
// "name address\n".
func (h *Host) PeerTCP(address string) (*Server, error) {
	return h.serveTCP(address, func(c net.Conn) {
		io.WriteString(c, h.Name+" "+c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()+"\n")
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	})
}

// PeerUDP is the same for datagrams. See [Host.EchoUDP] about addresses.
func (h *Host) PeerUDP(address string) (*Server, error) {
	return h.serveUDP(address, func(_ []byte, from netip.AddrPort) []byte {
		return []byte(h.Name + " " + from.Addr().Unmap().String())
	})
}

// Close stops listening, closes the connections being served, and waits for the
// server's goroutines. Once it returns the port is free, and asking for it is
// refused: with a reset, or an ICMP error for UDP. It may be called more than once.
func (s *Server) Close() error {
	s.mu.Lock()
	var err error
	if !s.closed {
		s.closed = true
		err = s.socket.Close()
		for c := range s.conns {
			c.Close()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (h *Host) serveTCP(address string, handle func(net.Conn)) (*Server, error) {
	ln, err := h.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{Addr: ln.Addr().(*net.TCPAddr).AddrPort(), socket: ln, conns: make(map[net.Conn]struct{})}
	s.wg.Go(func() { s.accept(ln, handle) })
	return s, nil
}

func (s *Server) accept(ln net.Listener, handle func(net.Conn)) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of file descriptors: connections must close first
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.wg.Go(func() {
			handle(c)
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
		s.mu.Unlock()
	}
}

func (h *Host) serveUDP(address string, answer func(request []byte, from netip.AddrPort) []byte) (*Server, error) {
	pc, err := h.ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return nil, err
	}
	conn := pc.(*net.UDPConn)
	s := &Server{Addr: conn.LocalAddr().(*net.UDPAddr).AddrPort(), socket: conn}
	s.wg.Go(func() {
		buf := make([]byte, 65535)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				conn.WriteToUDPAddrPort(answer(buf[:n], from), from) // lost, as datagrams may be
			}
		}
	})
	return s, nil
}
