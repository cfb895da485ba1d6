package testbed

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Server is a small server inside a [Host]. Close it before its Testbed, or let [Keep] do that.
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
	return h.ServeTCP(address, func(c net.Conn) { io.Copy(c, c) }) // an error is the client's to see
}

// EchoUDP sends each datagram, of up to 65,535 bytes, back to where it came from.
func (h *Host) EchoUDP(address string) (*Server, error) {
	return h.serveUDP(address, func(request []byte, _ netip.AddrPort) []byte { return request })
}

// WhoTCP answers each connection with the host's name.
func (h *Host) WhoTCP(address string) (*Server, error) { return h.named("tcp", address) }

// WhoUDP answers each datagram with the host's name.
func (h *Host) WhoUDP(address string) (*Server, error) { return h.named("udp", address) }

func (h *Host) named(network, address string) (*Server, error) {
	return h.Answer(network, address, func(netip.AddrPort) string { return h.Name })
}

// Peer answers each connection, or datagram, with the host's name and the client's address as the server sees it.
func (h *Host) Peer(network, address string) (*Server, error) {
	return h.Answer(network, address, func(client netip.AddrPort) string {
		return h.Name + " " + client.Addr().String()
	})
}

// Answer answers each connection, or datagram, with what say returns about its client. A connection ends when its
// client has ended it: to close with bytes unread would be a reset, which may destroy the answer on its way (RFC 1122
// section 4.2.2.13).
func (h *Host) Answer(network, address string, say func(client netip.AddrPort) string) (*Server, error) {
	if strings.EqualFold(network, "udp") {
		return h.serveUDP(address, func(_ []byte, client netip.AddrPort) []byte { return []byte(say(client)) })
	}
	return h.ServeTCP(address, func(c net.Conn) {
		client := c.RemoteAddr().(*net.TCPAddr).AddrPort()
		Say(c, say(netip.AddrPortFrom(client.Addr().Unmap(), client.Port())))
	})
}

// Say sends a line and ends the data of a connection, and waits for the client to do so.
func Say(c net.Conn, line string) {
	io.WriteString(c, line+"\n")
	c.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, c)
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

// ServeTCP calls handle with each connection, in a goroutine of its own, and closes it then.
func (h *Host) ServeTCP(address string, handle func(net.Conn)) (*Server, error) {
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

// serveUDP answers each datagram from the address that it was sent to.
func (h *Host) serveUDP(address string, answer func(request []byte, from netip.AddrPort) []byte) (*Server, error) {
	pc, err := freed(func() (net.PacketConn, error) { return h.ListenPacket(context.Background(), "udp", address) })
	if err != nil {
		return nil, err
	}
	conn := pc.(*net.UDPConn)
	if err := receivePacketInfo(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &Server{Addr: conn.LocalAddr().(*net.UDPAddr).AddrPort(), socket: conn}
	s.wg.Go(func() {
		buf, info := make([]byte, 65535), make([]byte, 256)
		for {
			n, m, _, from, err := conn.ReadMsgUDPAddrPort(buf, info)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // the answer needs the packet information of the question (ip(7)); it may be lost
				client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
				conn.WriteMsgUDPAddrPort(answer(buf[:n], client), info[:m], from)
			}
		}
	})
	return s, nil
}

// freed opens a socket at an address that may be in use: a socket that was closed a moment ago may still be held by a
// program that is being started, which has every descriptor between fork(2) and execve(2).
func freed[C any](open func() (C, error)) (C, error) {
	c, err := open()
	for end := time.Now().Add(Patience / 6); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a pause between two attempts
		c, err = open()
	}
	return c, err
}
