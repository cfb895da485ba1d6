package soak

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// knock opens connections at a rate, whatever becomes of them.
type knock struct {
	To   netip.AddrPort
	Rate int           // a second
	Hold time.Duration // after which the client ends each
	Most int           // that it opens in all; 0: no bound
	Send string        // as soon as a connection is there

	Addrs   int // that it knocks at in turn, To being the first; 0: one
	Sources int // addresses of 10.128.0.0/9 that it comes from in turn; 0: its own
}

// nth returns address number i of n from a on.
func nth(a netip.Addr, i, n int) (out [4]byte) {
	out = a.As4()
	binary.BigEndian.PutUint32(out[:], binary.BigEndian.Uint32(out[:])+uint32(i%max(n, 1)))
	return out
}

// run knocks from a host until ctx is done. The end of its process ends all connections.
func (k knock) run(ctx context.Context, from *testbed.Host) error {
	args, err := json.Marshal(k)
	if err != nil {
		return err
	}
	p, err := from.Self(context.WithoutCancel(ctx), "knock", string(args)).Launch()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		p.Stop(syscall.SIGKILL)
		return nil
	case <-p.Done():
		return fmt.Errorf("knock at %s: it has ended: %s", k.To, p.Log.String())
	}
}

// held is a connection of a knock.
type held struct {
	fd    int
	until time.Time
	sent  bool
}

func runKnock(args []string) error {
	var k knock
	if err := json.Unmarshal([]byte(args[0]), &k); err != nil {
		return err
	}
	var open []held
	start, begun := time.Now(), 0
	for {
		now := time.Now()
		for len(open) > 0 && now.After(open[0].until) {
			_ = unix.Close(open[0].fd)
			open = open[1:]
		}
		due := int(now.Sub(start).Seconds() * float64(k.Rate))
		if k.Most > 0 {
			due = min(due, k.Most)
		}
		for ; begun < due; begun++ {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if errors.Is(err, unix.EMFILE) {
				continue // this one is not made
			} else if err != nil {
				return err
			}
			if k.Sources > 0 {
				_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
				if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: nth(lab.Sources.Addr(), begun, k.Sources)}); err != nil {
					return err
				}
			}
			// It may find no port, as the clients of others may not.
			_ = unix.Connect(fd, &unix.SockaddrInet4{Addr: nth(k.To.Addr(), begun, k.Addrs), Port: int(k.To.Port())})
			open = append(open, held{fd: fd, until: now.Add(k.Hold)})
		}
		if k.Send != "" {
			k.speak(open)
		}
		time.Sleep(time.Millisecond) // the pace of a rate
	}
}

// speak sends what is to be sent on connections that are there.
func (k knock) speak(open []held) {
	for i := range open {
		if c := &open[i]; !c.sent {
			_, err := unix.Write(c.fd, []byte(k.Send))
			c.sent = err == nil
		}
	}
}

// serve starts a server in a pod that echoes at TCP port 80 and UDP port 53, until ctx is done.
func serve(ctx context.Context, pod *testbed.Host) (*testbed.Process, error) {
	p, err := pod.Self(context.WithoutCancel(ctx), "serve", pod.Addr4.String()).Launch()
	if err != nil {
		return nil, err
	}
	return p, testbed.Poll(ctx, testbed.Patience, "the attacked server", func() (bool, error) {
		c, err := pod.Dial(ctx, "tcp", pod.Addr4.String()+":80")
		if err != nil {
			return false, nil
		}
		return true, c.Close()
	})
}

func runServe(args []string) error {
	socket, err := net.ListenPacket("udp", net.JoinHostPort(args[0], "53"))
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 1500)
		for {
			if n, from, err := socket.ReadFrom(buf); err == nil {
				_, _ = socket.WriteTo(buf[:n], from)
			}
		}
	}()
	ln, err := net.Listen("tcp", net.JoinHostPort(args[0], "80"))
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if errors.Is(err, unix.EMFILE) {
			time.Sleep(time.Millisecond) // connections must end first
			continue
		} else if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}
