package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	sctpTimeout = 5 * time.Minute // of one run

	// sctpTries is how often a run is started: a server that is a program does not report
	// when it listens, and refuses until then.
	sctpTries = 3

	// sctpRate is how many messages are sent for each second that a run is to take.
	sctpRate = 12000
)

// sctpWorkloads send messages of a size that shares a packet with others, of one that
// nearly fills one, and of one of several packets.
func sctpWorkloads() []workload {
	var all []workload
	for _, size := range []int{100, 1200, 8000} {
		all = append(all, workload{
			name: fmt.Sprintf("sctp-%d", size), protocol: sctp, asked: true,
			about: fmt.Sprintf("SCTP, messages of %d B from client to server on one association",
				size), run: sending(size),
		})
	}
	return all
}

// sending sends messages of a size, and measures the machine too, since the kernel's paths
// have no process.
func sending(size int) work {
	return func(ctx context.Context, l *lab, r *running, d time.Duration) ([]figure, error) {
		ctx, cancel := context.WithTimeout(ctx, sctpTimeout)
		defer cancel()
		e, s := newEnds(), l.services[0]
		pod, to := l.tb.Pods[0], netip.MustParseAddrPort(r.addrs(s)[0])
		done, err := e.serve(ctx, pod, netip.AddrPortFrom(pod.Addr4, sctpPort), size)
		if err != nil {
			return nil, err
		}
		defer done()
		messages := max(int(sctpRate*d.Seconds()), 100)
		for range sctpTries {
			var before, after usage
			var machine, all ticks
			if before, err = measureUsage(r.pid(), l.cores.proxy); err != nil {
				return nil, err
			}
			if machine, err = allCores(); err != nil {
				return nil, err
			}
			start := time.Now()
			if err = e.send(ctx, l.tb.Client, to, size, messages); err != nil {
				continue
			}
			took := time.Since(start)
			if after, err = measureUsage(r.pid(), l.cores.proxy); err != nil {
				return nil, err
			}
			if all, err = allCores(); err != nil {
				return nil, err
			}
			n := float64(messages)
			busy := time.Duration(all.minus(machine).busy) * tick
			return append(costs(r, after.minus(before), n, micro, "us/message"),
				figure{"machine", "us/message", busy.Seconds() * micro / n},
				figure{report.Rate, "MB/s", n * float64(size) / took.Seconds() / 1e6}), r.alive()
		}
		return nil, fmt.Errorf("send by %s with %s: %w", r.name, e.name, err)
	}
}

// ends is SCTP at both ends of an association.
type ends struct {
	name string
	// serve takes messages of a size until done is called.
	serve func(ctx context.Context, h *testbed.Host, at netip.AddrPort, size int) (done func(), err error)
	// send sends messages and waits until all have arrived.
	send func(ctx context.Context, h *testbed.Host, to netip.AddrPort, size, n int) error
}

// newEnds chooses the kernel's SCTP if it has one: Sluice then uses its engine of sockets,
// and otherwise that of packets.
func newEnds() ends {
	if testbed.HasSCTP() {
		return ends{"the kernel's SCTP", serveKernel, sendKernel}
	}
	return ends{"usrsctp", serveTsctp, sendTsctp}
}

const tsctp = "/usr/lib/usrsctp/tsctp"

func serveTsctp(ctx context.Context, h *testbed.Host, at netip.AddrPort, size int) (func(), error) {
	p, err := h.Command(ctx, tsctp, "-E", "0", "-p", fmt.Sprint(at.Port()), "-L", at.Addr().String(),
		"-l", fmt.Sprint(size)).Launch()
	if err != nil {
		return nil, err
	}
	return func() { p.Stop(unix.SIGKILL) }, nil
}

func sendTsctp(ctx context.Context, h *testbed.Host, to netip.AddrPort, size, n int) error {
	out, err := h.Command(ctx, tsctp, "-E", "0", "-U", "0", "-p", fmt.Sprint(to.Port()), "-n", fmt.Sprint(n),
		"-l", fmt.Sprint(size), "-L", h.Addr4.String(), to.Addr().String()).CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("tsctp: %w: %s", err, lines[len(lines)-1])
	}
	return nil
}

func serveKernel(_ context.Context, h *testbed.Host, at netip.AddrPort, size int) (func(), error) {
	ln, err := h.ListenSCTP(at)
	if err != nil {
		return nil, err
	}
	return ln.Serve(func(c testbed.SCTPSocket) {
		buf := make([]byte, size)
		for err := error(nil); err == nil; {
			_, err = c.Read(buf)
		}
	})
}

func sendKernel(_ context.Context, h *testbed.Host, to netip.AddrPort, size, n int) error {
	c, err := h.DialSCTP(netip.AddrPortFrom(h.Addr4, 0), to, sctpTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	message := make([]byte, size)
	for range n {
		if _, err := c.Write(message); err != nil {
			return err
		}
	}
	// Everything has arrived when the shutdown is through: then there is nothing to read.
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if _, err = c.Read(message); err == io.EOF || err == unix.ENOTCONN {
		return nil
	}
	return err
}
