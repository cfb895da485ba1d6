package sctp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// kernelStack is the kernel's SCTP on a host, by one-to-one sockets.
type kernelStack struct {
	host *testbed.Host
	ip   netip.Addr

	mu        sync.Mutex
	listeners map[uint16]*os.File
	peers     []*kernelPeer
}

func newKernel(h *testbed.Host, ip netip.Addr) (stack, error) {
	return &kernelStack{host: h, ip: ip, listeners: make(map[uint16]*os.File)}, nil
}

func (s *kernelStack) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.listeners {
		_ = f.Close()
	}
	for _, p := range s.peers {
		p.abort()
	}
}

// socket makes one that is bound to the host's address, with 32 streams to send on.
func (s *kernelStack) socket(port uint16) (fd int, err error) {
	err = s.host.Do(func() (err error) {
		fd, err = socket.New(s.ip, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
		return err
	})
	if err != nil {
		return -1, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	err = errors.Join(kernel.SetStreams(fd, bulkStreams, bulkStreams), kernel.SetOptions(fd, 1<<20), socket.Bind(fd, netip.AddrPortFrom(s.ip, port)))
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

func (s *kernelStack) listen(port uint16) (<-chan peer, error) {
	fd, err := s.socket(port)
	if err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, 4096); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "listener")
	s.mu.Lock()
	s.listeners[port] = f
	s.mu.Unlock()
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	accepted := make(chan peer, 4096)
	go func() {
		for {
			var got int
			var from netip.AddrPort
			var err error
			if rc.Read(func(fd uintptr) bool {
				got, from, err = socket.Accept(int(fd))
				return err != unix.EAGAIN
			}) != nil {
				return // closed
			}
			if err == nil {
				if p, err := s.newPeer(got, from); err == nil {
					accepted <- p
				}
			}
		}
	}()
	return accepted, nil
}

func (s *kernelStack) unlisten(port uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.listeners[port].Close()
}

func (s *kernelStack) dial(ctx context.Context, to netip.AddrPort, from uint16) (peer, error) {
	fd, err := s.socket(from)
	if err != nil {
		return nil, err
	}
	if err := socket.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		_ = unix.Close(fd)
		return nil, err
	}
	p, err := s.newPeer(fd, to)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.f.SetDeadline(time.Now()) })
	defer stop()
	waited := p.rc.Write(func(fd uintptr) bool {
		var code int
		if code, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			return true
		}
		_, missing := kernel.GetStatus(int(fd)) // until it is established
		return missing == nil
	})
	if err = errors.Join(waited, err); err != nil {
		p.abort()
		return nil, err
	}
	return p, nil
}

// kernelPeer is one association.
type kernelPeer struct {
	f    *os.File
	rc   syscall.RawConn
	peer netip.AddrPort
	buf  []byte
}

func (s *kernelStack) newPeer(fd int, from netip.AddrPort) (*kernelPeer, error) {
	if err := kernel.SetOptions(fd, 1<<20); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	p := &kernelPeer{f: os.NewFile(uintptr(fd), "association"), peer: from}
	var err error
	if p.rc, err = p.f.SyscallConn(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.peers = append(s.peers, p)
	s.mu.Unlock()
	return p, nil
}

func (p *kernelPeer) send(m message) error {
	i := kernel.Info{Stream: m.stream, PPID: m.ppid}
	if m.unordered {
		i.Flags = kernel.FlagUnordered
	}
	if err := p.f.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var err error
	waited := p.rc.Write(func(fd uintptr) bool {
		err = kernel.Send(int(fd), m.data, i)
		return err != unix.EAGAIN
	})
	return errors.Join(waited, err)
}

func (p *kernelPeer) receive() (message, error) {
	if p.buf == nil {
		p.buf = make([]byte, 64<<10)
	}
	if err := p.f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return message{}, err
	}
	var m message
	for {
		var got kernel.Part
		var err error
		waited := p.rc.Read(func(fd uintptr) bool {
			got, err = kernel.Receive(int(fd), p.buf)
			return err != unix.EAGAIN
		})
		switch {
		case errors.Is(waited, os.ErrDeadlineExceeded):
			return m, errPatience
		case waited != nil || err != nil:
			return m, fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, errors.Join(waited, err))
		case got.Notification:
			if state, ok := kernel.Change(p.buf[:got.N]); ok && state == kernel.ChangeShutdown {
				return m, io.EOF
			}
			continue
		case got.N == 0:
			return m, io.EOF
		}
		m.data = append(m.data, p.buf[:got.N]...)
		if got.End {
			m.stream, m.ppid, m.unordered = got.Info.Stream, got.Info.PPID, got.Info.Flags&kernel.FlagUnordered != 0
			return m, nil
		}
	}
}

func (p *kernelPeer) shutdown() error {
	var err error
	waited := p.rc.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) })
	return errors.Join(waited, err)
}

func (p *kernelPeer) abort() {
	_ = p.rc.Control(func(fd uintptr) { socket.ResetOnClose(int(fd)) })
	_ = p.f.Close()
}

func (p *kernelPeer) vanish() {}

func (p *kernelPeer) from() netip.AddrPort { return p.peer }
