package testbed

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// SCTPEnds is SCTP at the ends of associations: the kernel's own, or in user space
// where it has none.
type SCTPEnds struct {
	Engine, Why string // that Sluice uses there
	EchoPort    int
	Echo        func(t testing.TB, h *Host)                                            // starts a server that echoes
	OpenFrom    func(from *Host, port uint16, addr netip.AddrPort) (SCTPClient, error) // port 0: any
	OnNode      bool                                                                   // clients may be on the node
	PerHost     int                                                                    // clients at once on a host
}

// SCTPClient is an association with a server that echoes.
type SCTPClient interface {
	Ask(line string) error // sends a line and waits for its echo
	Abandon()              // an association that may be dead, which to end properly takes minutes
	Close()
}

// Ask sends a line by an association of its own and waits for its echo.
func (e *SCTPEnds) Ask(from *Host, addr netip.AddrPort, line string) error {
	c, err := e.Open(from, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Ask(line)
}

// Programs of usrsctp: one that echoes at port 7, and one that sends its input in
// lines and prints what comes back. On the node they would take each packet of
// Sluice's for one of theirs, and abort.
const (
	usrsctpEcho   = "/usr/lib/usrsctp/echo_server"
	usrsctpClient = "/usr/lib/usrsctp/client"
)

// Open opens an association from any port.
func (e *SCTPEnds) Open(from *Host, addr netip.AddrPort) (SCTPClient, error) {
	return e.OpenFrom(from, 0, addr)
}

// NewSCTPEnds returns the SCTP that this kernel allows at both ends of an association.
func NewSCTPEnds(t testing.TB) SCTPEnds {
	t.Helper()
	ends, err := FindSCTPEnds()
	if err != nil {
		Missing(t, err.Error())
	}
	return ends
}

// FindSCTPEnds returns an error if nothing here speaks SCTP.
func FindSCTPEnds() (SCTPEnds, error) {
	if HasSCTP() {
		return SCTPEnds{"socket", "the kernel has SCTP", 3868, kernelEcho, openKernel, true, 10}, nil
	}
	for _, name := range []string{usrsctpEcho, usrsctpClient} {
		if _, err := os.Stat(name); err != nil {
			return SCTPEnds{}, err
		}
	}
	return SCTPEnds{"packet", "the kernel has no SCTP", 7, usrsctpServe, openUsrsctp, false, 1}, nil
}

func usrsctpServe(t testing.TB, h *Host) {
	cmd := h.Command(context.Background(), usrsctpEcho)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
}

// usrsctpProgram is a client of usrsctp. It never says that it is connected, and ends
// with its input.
type usrsctpProgram struct {
	cmd   *Cmd
	to    netip.AddrPort
	feed  io.WriteCloser
	out   Buffer
	ended chan error
}

func openUsrsctp(from *Host, port uint16, addr netip.AddrPort) (SCTPClient, error) {
	cmd := from.Command(context.Background(), usrsctpClient, addr.Addr().String(), fmt.Sprint(addr.Port()),
		fmt.Sprint(port))
	in, feed := io.Pipe()
	c := &usrsctpProgram{cmd: cmd, to: addr, feed: feed, ended: make(chan error, 1)}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &c.out, &c.out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { c.ended <- cmd.Wait() }()
	return c, nil
}

func (c *usrsctpProgram) Ask(line string) error {
	if _, err := io.WriteString(c.feed, line+"\n"); err != nil {
		return err
	}
	for deadline := time.Now().Add(Patience); !strings.Contains(c.out.String(), line); {
		select {
		case err := <-c.ended:
			c.ended <- err
			return fmt.Errorf("no echo of %q from %s: %w: %s", line, c.to, err, c.out.String())
		case <-time.After(5 * time.Millisecond): // a pause between two looks
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no echo of %q from %s: %s", line, c.to, c.out.String())
		}
	}
	return nil
}

func (c *usrsctpProgram) Close() {
	_ = c.feed.Close()
	<-c.ended
}

// Abandon ends the program, and leaves to its server to find out.
func (c *usrsctpProgram) Abandon() {
	_ = c.cmd.Process.Kill()
	c.Close()
}

// kernelEcho serves both addresses of a host.
func kernelEcho(t testing.TB, h *Host) {
	for _, addr := range []netip.Addr{h.Addr4, h.Addr6} {
		ln, err := h.ListenSCTP(netip.AddrPortFrom(addr, 3868))
		if err != nil {
			t.Fatal(err)
		}
		stop, err := ln.Serve(func(c SCTPSocket) { _, _ = io.CopyBuffer(c, c, make([]byte, 1500)) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
}

// kernelClient is a socket of the kernel.
type kernelClient struct {
	SCTPSocket
	to netip.AddrPort
}

func openKernel(from *Host, port uint16, addr netip.AddrPort) (SCTPClient, error) {
	var at netip.AddrPort
	if port != 0 {
		at = netip.AddrPortFrom(from.Addr4, port)
		if addr.Addr().Is6() {
			at = netip.AddrPortFrom(from.Addr6, port)
		}
	}
	s, err := from.DialSCTP(at, addr, Patience)
	return kernelClient{s, addr}, err
}

func (c kernelClient) Ask(line string) error {
	if _, err := io.WriteString(c, line); err != nil {
		return fmt.Errorf("ask %s: %w", c.to, err)
	}
	buf := make([]byte, 1500)
	n, err := c.Read(buf)
	if err != nil || string(buf[:n]) != line {
		return fmt.Errorf("%s answers %q to %q: %w", c.to, buf[:n], line, err)
	}
	return nil
}

func (c kernelClient) Abandon() { c.Abort() }
