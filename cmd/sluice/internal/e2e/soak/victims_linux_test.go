package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// Addresses of the victims' Services.
const (
	webAddr  = "10.96.1.1:80"
	echoAddr = "10.96.1.2:7"
	dnsAddr  = "10.96.1.3:53"
	sctpIP   = "10.96.1.4"
)

// meter counts what one kind of victim has seen since it was last read.
type meter struct {
	mu    sync.Mutex
	took  []time.Duration // of what was answered
	wrong int
	first error // the first error of all
}

// add counts what took so long, or failed.
func (m *meter) add(took time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.wrong++
		m.first = cmp.Or(m.first, fmt.Errorf("at %s: %w", time.Now().Format(time.TimeOnly), err))
		return
	}
	m.took = append(m.took, took)
}

// count is what a meter has counted for some time.
type count struct {
	done, wrong int
	p99         time.Duration
}

// read returns what was counted since the last call.
func (m *meter) read() count {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := count{done: len(m.took), wrong: m.wrong}
	if c.done > 0 {
		slices.Sort(m.took)
		c.p99 = m.took[c.done*99/100]
	}
	m.took, m.wrong = m.took[:0], 0
	return c
}

// victims are clients of Services that are not attacked.
type victims struct {
	*lab.Lab
	requests, fresh, datagrams, messages meter

	ends testbed.SCTPEnds
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Pods of the lab: the first three serve the victims.
const (
	tenants  = 3 // pods of the victims
	attacked = tenants
	silent   = tenants + 1
	pods     = tenants + 2
)

// newVictims has the pods serve, and the Services be there with the program's start.
func newVictims(l *lab.Lab) *victims {
	v := &victims{Lab: l, ends: testbed.NewSCTPEnds(l.T)}
	v.ctx, v.stop = context.WithCancel(l.T.Context())
	for _, pod := range l.Pods[:tenants] {
		testbed.Keep(l.T)(pod.WhoTCP(":8080"))
		testbed.Keep(l.T)(pod.EchoTCP(":7"))
		testbed.Keep(l.T)(pod.EchoUDP(pod.Addr4.String() + ":53"))
		v.ends.Echo(l.T, pod)
	}
	v.publish(0)
	l.T.Cleanup(v.end)
	return v
}

// publish writes the victims' Services with the endpoints of a turn: one of three pods is left out, each in its turn.
// What is open stays where it is.
func (v *victims) publish(turn int) {
	left := slices.Clone(v.Pods[:tenants])
	if turn > 0 {
		left = slices.Delete(left, turn%tenants, turn%tenants+1)
	}
	addrs := testbed.Addrs(left...)
	for _, s := range []struct {
		name, addr, protocol string
		port                 int
	}{{"web", webAddr, "TCP", 8080}, {"dns", dnsAddr, "UDP", 53}} {
		v.Write(s.name+".yaml", testbed.ServiceManifest(s.name, s.addr, s.protocol, ""),
			testbed.SliceManifest(s.name, 1, s.port, s.protocol, addrs...))
	}
	if turn > 0 {
		return
	}
	all := testbed.Addrs(v.Pods[:tenants]...)
	v.Write("echo.yaml", testbed.ServiceManifest("echo", echoAddr, "TCP", ""),
		testbed.SliceManifest("echo", 1, 7, "TCP", all...))
	v.Write("sctp.yaml", testbed.ServiceManifest("sctp", fmt.Sprint(sctpIP, ":", v.ends.EchoPort), "SCTP", ""),
		testbed.SliceManifest("sctp", 1, v.ends.EchoPort, "SCTP", all...))
}

// patience is how long an answer may take: a SYN may be lost twice, since that is sent again after 1 s and 3 s, and no
// more.
const patience = 5 * time.Second

// start starts the clients.
func (v *victims) start() {
	for range 8 {
		v.each(5*time.Millisecond, &v.requests, v.asker("tcp", echoAddr))
	}
	for range 4 {
		v.each(80*time.Millisecond, &v.fresh, func() error {
			name, err := v.Client.TryAsk("tcp", webAddr, patience)
			if err == nil && name == "" {
				err = errors.New("a new connection gets no answer")
			}
			return err
		})
	}
	for range 16 {
		v.each(50*time.Millisecond, &v.datagrams, v.asker("udp", dnsAddr))
	}
	v.each(200*time.Millisecond, &v.messages, v.messenger())
}

// end stops the clients and waits for them.
func (v *victims) end() {
	v.stop()
	v.wg.Wait()
}

// each has do done again and again, with pauses.
func (v *victims) each(pause time.Duration, m *meter, do func() error) {
	v.wg.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-v.ctx.Done():
				_ = do() // which closes what it has
				return
			case <-tick.C:
			}
			began := time.Now()
			if err := do(); v.ctx.Err() == nil {
				m.add(time.Since(began), err)
			}
		}
	})
}

// asker asks by one connection, or from one socket, for as long as that lives.
func (v *victims) asker(network, addr string) func() error {
	var c net.Conn
	n := 0
	return func() (err error) {
		if v.ctx.Err() != nil {
			if c != nil {
				_ = c.Close()
			}
			return nil
		}
		if c == nil {
			if c, err = v.Client.Dial(v.ctx, network, addr); err != nil {
				return fmt.Errorf("%s: %w", network, err)
			}
		}
		n++
		question := fmt.Sprintf("question %10d", n)
		answer := make([]byte, len(question))
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err = io.WriteString(c, question); err == nil {
			_, err = io.ReadFull(c, answer)
		}
		if err == nil && string(answer) != question {
			err = fmt.Errorf("%q for an answer to %q", answer, question)
		}
		if err != nil {
			_ = c.Close()
			c = nil
			return fmt.Errorf("%s, question %d: %w", network, n, err)
		}
		return nil
	}
}

// messenger asks by one association for as long as that lives.
func (v *victims) messenger() func() error {
	var c testbed.SCTPClient
	n := 0
	return func() (err error) {
		if v.ctx.Err() != nil {
			if c != nil {
				c.Abandon()
			}
			return nil
		}
		if c == nil {
			to := netip.AddrPortFrom(netip.MustParseAddr(sctpIP), uint16(v.ends.EchoPort))
			if c, err = v.ends.Open(v.Client, to); err != nil {
				return err
			}
		}
		n++
		if err = c.Ask(fmt.Sprintf("message %d.", n)); err != nil {
			c.Abandon()
			c = nil
		}
		return err
	}
}

// unharmed fails the test if a victim has seen an error.
func (v *victims) unharmed(t *testing.T, when string) {
	t.Helper()
	for name, m := range v.meters() {
		c := m.read()
		t.Logf("%s: %s: %d, %d errors, p99 %v", when, name, c.done, c.wrong, c.p99)
		if c.wrong > 0 {
			t.Errorf("%s: %s: %d of %d failed, first %v", when, name, c.wrong, c.done+c.wrong, m.first)
		}
		if c.done == 0 {
			t.Errorf("%s: %s: none was answered", when, name)
		}
	}
}

func (v *victims) meters() map[string]*meter {
	return map[string]*meter{"requests": &v.requests, "connections": &v.fresh, "datagrams": &v.datagrams,
		"messages": &v.messages}
}
