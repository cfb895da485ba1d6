package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Host is one machine of a [Testbed]: a network namespace with a loopback
// interface and eth0.
type Host struct {
	Name  string     // "client-0", "node", "pod-0", "remote-pod-0", ...
	Addr4 netip.Addr // of eth0
	Addr6 netip.Addr
	Alt4  netip.Addr // second addresses of eth0; only Node has them
	Alt6  netip.Addr

	tb   *Testbed
	ns   *namespace
	port *port // of the bridge that eth0 is plugged into; nil for the router
}

// String returns the host's name.
func (h *Host) String() string { return h.Name }

// Do runs f inside the host: sockets that f makes, processes that it starts, and
// /proc/sys/net belong to the host. Sockets stay there and may be used outside of
// Do, by any goroutine.
//
// f runs on the caller's goroutine, locked to its thread (so t.Fatal works), and
// Do returns its error. Goroutines that f starts are NOT inside the host, and
// neither is what net starts goroutines for: resolving names, dialling more than
// one address. /proc/net and /proc/self are those of the program's main thread;
// use /proc/thread-self.
//
// If the thread cannot be brought back it is never unlocked, so that it ends with
// the calling goroutine (or idles for good, if it is the main thread), and the
// error says so.
func (h *Host) Do(f func() error) (err error) {
	leave, err := h.enter()
	if err != nil {
		return err
	}
	defer func() {
		if e := leave(); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return f()
}

// enter locks the calling goroutine to its thread and moves that into the host; leave
// undoes both, or leaves the thread locked if it cannot be brought back.
func (h *Host) enter() (leave func() error, err error) {
	runtime.LockOSThread()
	back, err := h.ns.enter()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter host %s: %w", h.Name, err)
	}
	return func() error {
		if err := back(); err != nil {
			return fmt.Errorf("leave host %s (the thread stays in it): %w", h.Name, err)
		}
		runtime.UnlockOSThread()
		return nil
	}, nil
}

// Listen listens inside the host. The network is one that [net.Listen] takes; the
// address is numeric, and may lack its host to mean all addresses. The caller
// owns the listener.
func (h *Host) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if err := checkNumeric(address); err != nil {
		return nil, err
	}
	var ln net.Listener
	err := h.Do(func() (err error) {
		var lc net.ListenConfig
		ln, err = lc.Listen(ctx, network, address)
		return err
	})
	return ln, err
}

// ListenPacket is [Host.Listen] for datagrams.
func (h *Host) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	if err := checkNumeric(address); err != nil {
		return nil, err
	}
	var pc net.PacketConn
	err := h.Do(func() (err error) {
		var lc net.ListenConfig
		pc, err = lc.ListenPacket(ctx, network, address)
		return err
	})
	return pc, err
}

// Dial connects from inside the host to a numeric address, until ctx is done. The network may be in
// capitals. Dial fits http.Transport.DialContext. The caller owns the connection.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return h.DialFrom(ctx, netip.AddrPort{}, network, address)
}

// DialFrom is Dial from an address and a port of the host. The zero Addr and port 0 are any.
func (h *Host) DialFrom(ctx context.Context, from netip.AddrPort, network, address string) (net.Conn, error) {
	if err := checkNumeric(address); err != nil {
		return nil, err
	}
	network = strings.ToLower(network)
	var d net.Dialer
	if from.Addr().IsValid() || from.Port() != 0 {
		local := &net.TCPAddr{IP: from.Addr().AsSlice(), Port: int(from.Port())} // without an IP: of any
		if d.LocalAddr = local; strings.HasPrefix(network, "udp") {
			d.LocalAddr = &net.UDPAddr{IP: local.IP, Port: local.Port}
		}
	}
	var c net.Conn
	err := h.Do(func() (err error) {
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// checkNumeric refuses names: resolving one would leave the host's namespace,
// and quietly answer from the program's own.
func checkNumeric(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("use address %q: %w", address, err)
	}
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("use address %q: not numeric: %w", address, err)
	}
	return nil
}

// Sysctl sets a key such as "net.ipv4.ip_forward" inside the host.
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error {
		if err := os.WriteFile(sysctlFile(key), []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl %s to %q on host %s: %w", key, value, h.Name, err)
		}
		return nil
	})
}

func sysctlFile(key string) string {
	return filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/"))
}

// Blackhole makes all packets to and from the host vanish, or lets them pass
// again. Neither side gets an error: the host's link stays up, and there is no reset
// or an ICMP error. It is done at the far end of the host's link, so it holds for
// the pods of a node that is black-holed but not between those pods.
//
// There is one exception: a pod that asks for a black-holed pod on the same bridge
// resolves its link-layer address itself, and fails with EHOSTUNREACH after 3 s.
func (h *Host) Blackhole(on bool) error {
	if h.port == nil {
		return fmt.Errorf("black-hole host %s: it is the switch itself", h.Name)
	}
	if err := h.port.forward(!on); err != nil {
		return fmt.Errorf("black-hole host %s: %w", h.Name, err)
	}
	return nil
}

// Cmd is a process of a [Host]. It is used as its exec.Cmd is; only starting it
// differs. On Linux it is killed when its Testbed is closed or the program dies;
// the caller still has to call Wait.
type Cmd struct {
	*exec.Cmd
	host *Host
}

// Command returns a process that will run inside the host. Only the network is
// the host's: files, /sys, and all else are the program's. It is killed when ctx
// is done. WaitDelay is 5 s, so that Wait ends even if a descendant keeps its
// output open.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.WaitDelay = 5 * time.Second
	return &Cmd{Cmd: c, host: h}
}

// Start starts the process and does not wait for it.
func (c *Cmd) Start() error {
	if err := c.host.tb.starter.start(c); err != nil {
		return fmt.Errorf("start %s on host %s: %w", filepath.Base(c.Path), c.host.Name, err)
	}
	return nil
}

// Self returns a process that will run this program again inside the host, as the
// program of that name among those of [Main].
func (h *Host) Self(ctx context.Context, program string, args ...string) *Cmd {
	c := h.Command(ctx, "/proc/self/exe", args...)
	c.Env = append(os.Environ(), programVar+"="+program)
	return c
}

// Run starts the process and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process and returns what it wrote to standard output. The
// error carries what it wrote to standard error, unless Stderr was set.
func (c *Cmd) Output() ([]byte, error) {
	var out, diag bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &diag
	}
	err := c.Run()
	if err != nil && diag.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(diag.Bytes()))
	}
	return out.Bytes(), err
}

// CombinedOutput runs the process and returns what it wrote to standard output
// and standard error.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// Addr returns the host's address of a family.
func (h *Host) Addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return h.Addr6
	}
	return h.Addr4
}

// At returns that address with a port.
func (h *Host) At(ipv6 bool, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(h.Addr(ipv6), port)
}

// Addrs returns the IPv4 addresses of hosts.
func Addrs(hosts ...*Host) (out []string) {
	for _, h := range hosts {
		out = append(out, h.Addr4.String())
	}
	return out
}
