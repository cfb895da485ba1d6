package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// movers are Services on data path auto, which move with what they request.
var movers = []lab.Movable{
	{Name: "auto-web", Addr: "10.96.4.1:80", Protocol: "TCP", Port: 8080},
	{Name: "auto-echo", Addr: "10.96.4.2:7", Protocol: "TCP", Port: 7},
	{Name: "auto-dns", Addr: "10.96.4.3:53", Protocol: "UDP", Port: 53},
}

// asks are what they request, one after the other: of streams, and of datagrams.
var asks = [][2]string{
	{"", ""},
	{"sluice.io/scheduler: lc", "sluice.io/scheduler: lc"},
	{"sluice.io/idle-timeout: 1h", "sluice.io/udp-idle-timeout: 1m"},
	{"sluice.io/hold: 5s", "sluice.io/hold: 5s"},
	{"", ""},
	{"sluice.io/max-connections: \"1000\"", "sluice.io/scheduler: maglev"},
	{"sluice.io/on-endpoint-removed: reset-after:1h", "sluice.io/udp-idle-timeout: 1m"},
}

const (
	asksFor    = 4 // turns
	stabilizes = 3 * time.Second
)

// publishMovers writes the movers' Services with the requests and the endpoints of a turn.
func (v *victims) publishMovers(turn int) {
	for i, m := range movers {
		of := asks[(turn/asksFor+2*i)%len(asks)]
		if m.Path, m.Asks = "auto", of[0]; m.Protocol == "UDP" {
			m.Asks = of[1]
		}
		pods := v.Pods[:tenants]
		if turn%2 == 1 && m.Name != "auto-echo" {
			pods = pods[1:]
		}
		v.Write(m.Name+".yaml", m.Manifest(), testbed.SliceManifest(m.Name, 1, m.Port, m.Protocol, testbed.Addrs(pods...)...))
	}
}

// startMovers starts their clients, whose answers count as those of the other victims.
func (v *victims) startMovers() {
	for range 4 {
		v.each(10*time.Millisecond, &v.requests, v.asker("tcp", movers[1].Addr))
	}
	for range 2 {
		v.each(80*time.Millisecond, &v.fresh, func() error {
			name, err := v.Client.TryAsk("tcp", movers[0].Addr, patience)
			if err == nil && name == "" {
				err = errors.New("a new connection to a Service that moves gets no answer")
			}
			return err
		})
	}
	for range 4 {
		v.each(50*time.Millisecond, &v.datagrams, v.resolver(movers[2].Addr))
	}
}

// resolver asks from one socket, and once more each second, as resolvers do: of a flow that moves between two data
// paths a datagram may be lost.
func (v *victims) resolver(addr string) func() error {
	var c net.Conn
	n := 0
	return func() (err error) {
		if c == nil {
			if c, err = v.Client.Dial(context.WithoutCancel(v.ctx), "udp", addr); err != nil {
				return err
			}
		}
		if v.ctx.Err() != nil {
			return c.Close()
		}
		n++
		question, answer := []byte(fmt.Sprintf("question %d", n)), make([]byte, 64)
		for end := time.Now().Add(patience); time.Now().Before(end); {
			if _, err = c.Write(question); err != nil {
				return err
			}
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			for {
				k, err := c.Read(answer)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				} else if err != nil {
					return err
				}
				if bytes.Equal(answer[:k], question) {
					return nil
				} // else it is the answer to what was sent twice
			}
		}
		return errors.New("a Service that moves gives no answer")
	}
}

// moved returns how many moves the programs have logged.
func (s *stage) moved() int {
	log, err := os.ReadFile(s.File.Name())
	testbed.Check(s.Lab.T, err)
	return bytes.Count(log, []byte("moving a Service to another data path"))
}
