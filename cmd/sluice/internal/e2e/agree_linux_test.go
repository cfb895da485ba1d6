package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// tally is what clients have done.
type tally struct {
	connections, resets, bytes atomic.Uint64 // bytes each way
}

// echo sends random bytes and wants them back.
func (n *tally) echo(c net.Conn, size int) error {
	sent, got := make([]byte, size), make([]byte, size)
	_, _ = io.ReadFull(testbed.Stream(rand.Uint64()), sent)
	if _, err := c.Write(sent); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(sent, got) {
		return fmt.Errorf("of %d bytes others come back: %w", size, err)
	}
	n.bytes.Add(uint64(size))
	return nil
}

// short is one connection, which ends by a FIN, or by a reset of the client's.
func (n *tally) short(l looker, reset bool) error {
	c, err := l.Client.Dial(l.T.Context(), "tcp", lab.WebAddr)
	if err != nil {
		return err
	}
	defer c.Close()
	n.connections.Add(1)
	_ = c.SetDeadline(time.Now().Add(testbed.Patience))
	if err := n.echo(c, 1+rand.IntN(3000)); err != nil {
		return err
	}
	if reset {
		n.resets.Add(1)
		return c.(*net.TCPConn).SetLinger(0)
	}
	return nil
}

// handOverTwice has the process hand over to another one, and that to a third, and calls what passes through before and
// after each.
func (l looker) handOverTwice(args []string, passThrough func()) {
	l.T.Helper()
	for range 2 {
		passThrough()
		l.HandOver(args...)
		passThrough()
	}
}

// TestNumbersAgree: after a load of many clients over two hand-overs the status, the page, the metrics, the access log
// and the clients count the same connections and bytes.
func TestNumbersAgree(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{Pods: 3}), filepath.Join(run, "api.sock")}
	l.ServeEcho()
	log := filepath.Join(t.TempDir(), "access.log")
	args := []string{"--handover-socket", filepath.Join(run, "handover.sock"), "--default-policy", "access-log=all",
		"--access-log-file", log, "--metrics-histograms=1"}
	l.Start(args...)
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })

	const long, clients, each = 20, 8, 150
	var n tally
	var open []*testbed.Talker
	for range long {
		c, err := l.Client.Dial(t.Context(), "tcp", lab.WebAddr)
		testbed.Check(t, err)
		defer c.Close()
		n.connections.Add(1)
		open = append(open, &testbed.Talker{T: t, Conn: c})
	}
	passThrough := func() {
		t.Helper()
		for _, c := range open {
			_ = c.SetDeadline(time.Now().Add(testbed.Patience))
			if err := n.echo(c, 1+rand.IntN(100_000)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var all sync.WaitGroup
	over := make(chan struct{}) // the second hand-over
	for k := range clients {
		all.Go(func() {
			for i := 0; i < each || !ended(over); i++ {
				if err := n.short(l, (i+k)%10 == 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	l.handOverTwice(args, passThrough)
	close(over)
	all.Wait()
	for _, c := range open {
		_ = c.Close()
	}
	if t.Failed() {
		return
	}
	l.Eventually("all have ended", func() bool { return read[api.Status](l, "status").Open.TCP == 0 })
	l.agree(&n, log)
}

// agree compares what there is to see with what clients have done.
func (l looker) agree(n *tally, log string) {
	l.T.Helper()
	connections, resets, bytes := n.connections.Load(), n.resets.Load(), n.bytes.Load()
	l.agreeOn("web", api.Counted{Picks: connections, BytesIn: bytes, BytesOut: bytes})
	of := l.series("web", "TCP")
	l.compare(map[string]pair{
		"picks":     {of("picks_total", "", "", ""), connections},
		"connects":  {of("connect_seconds_count", "", "", ""), connections},
		"answers":   {of("first_byte_seconds_count", "", "", ""), connections},
		"ends":      {of("connection_duration_seconds_count", "", "", ""), connections},
		"resets":    {of("resets_total", "", `reason="established",`, `,side="client"`), resets},
		"bytes in":  {of("bytes_total", `direction="in",`, "", ""), bytes},
		"bytes out": {of("bytes_total", `direction="out",`, "", ""), bytes},
		"accepted":  {l.Metric(`sluice_connections_total{protocol="TCP",result="established"}`), connections},
	})
	ends := l.logAgrees(n, log)
	if ends["CD"] != resets || ends["--"] != connections-resets {
		l.T.Errorf("the access log has ends %v; want %d, and %d resets", ends, connections, resets)
	}
}

// agreeOn compares the status, the Service, its endpoints, the metrics address and the page with what clients of one
// Service have done, after two hand-overs.
func (l looker) agreeOn(service string, want api.Counted) {
	l.T.Helper()
	if s := read[api.Status](l, "status"); s.Counted != want || s.HandOvers.Count != 2 {
		l.T.Errorf("after %d hand-overs the status counts %+v, want %+v", s.HandOvers.Count, s.Counted, want)
	}
	ports := read[api.List[api.Service]](l, "services", "default/"+service).Items
	if len(ports) != 1 || ports[0].Counted != want {
		l.T.Errorf("the Service counts %+v, want %+v", ports, want)
	}
	var sum api.Counted
	for _, e := range read[api.List[api.Endpoint]](l, "endpoints", "default/"+service).Items {
		sum.Picks, sum.BytesIn, sum.BytesOut = sum.Picks+e.Picks, sum.BytesIn+e.BytesIn, sum.BytesOut+e.BytesOut
	}
	if sum != want {
		l.T.Errorf("its endpoints count %+v, want %+v", sum, want)
	}
	_, page := l.Get("http://127.0.0.1:10249/v1/services")
	var list api.List[api.Service]
	if err := json.Unmarshal([]byte(page), &list); err != nil || len(list.Items) != 1 || list.Items[0].Counted != want {
		l.T.Errorf("the metrics address has %s, %v", page, err)
	}
	_, page = l.Get("http://127.0.0.1:10249/service?namespace=default&name=" + service)
	row := page[max(strings.Index(page, "<tbody>"), 0):]
	if cell := fmt.Sprintf(`<td class="number">%s</td>`, grouped(want.Picks)); !strings.Contains(row, cell) {
		l.T.Errorf("the page of the Service has no %s:\n%s", cell, row)
	}
}

// series returns what reads the series of a Service: their names, and their labels before the protocol, after it, and
// after the Service.
func (l looker) series(service, protocol string) func(name, first, then, last string) float64 {
	return func(name, first, then, last string) float64 {
		l.T.Helper()
		return l.Metric(fmt.Sprintf("sluice_service_%s{%sprotocol=%q,%sservice_name=%q,service_namespace=\"default\","+
			"service_port=\"\"%s}", name, first, protocol, then, service, last))
	}
}

// pair is what metrics have and what clients have counted.
type pair struct {
	got  float64
	want uint64
}

func (l looker) compare(pairs map[string]pair) {
	l.T.Helper()
	for what, x := range pairs {
		if x.got != float64(x.want) {
			l.T.Errorf("the metrics have %v %s, want %d", x.got, what, x.want)
		}
	}
}

// grouped writes a number as the page does, with commas.
func grouped(n uint64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// logAgrees compares the access log with what clients have done, and returns how many have ended how.
func (l looker) logAgrees(n *tally, log string) (ends map[string]uint64) {
	l.T.Helper()
	text, err := os.ReadFile(log)
	testbed.Check(l.T, err)
	var in, out, lines uint64
	ends = make(map[string]uint64)
	for line := range strings.Lines(string(text)) {
		var e accessLine
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Service == "" || e.Endpoint == "" {
			l.T.Fatalf("%q: %v", line, err)
		}
		lines, in, out = lines+1, in+e.In, out+e.Out
		ends[e.End]++
	}
	if connections, bytes := n.connections.Load(), n.bytes.Load(); lines != connections || in != bytes || out != bytes {
		l.T.Errorf("the access log has %d lines, %d bytes in, %d out; want %d, %d each way", lines, in, out, connections, bytes)
	}
	return ends
}

// flow sends some datagrams from one port, one after the other, and wants each back.
func (n *tally) flow(c testbed.UDPClient, datagrams int) error {
	for range datagrams {
		sent := make([]byte, 1+rand.IntN(4000)) // with fragments
		_, _ = io.ReadFull(testbed.Stream(rand.Uint64()), sent)
		got, err := c.Ask(sent, testbed.Patience)
		if err != nil || got != string(sent) {
			return fmt.Errorf("%v: of %d bytes %d come back, or others: %w", c.LocalAddr(), len(sent), len(got), err)
		}
		n.bytes.Add(uint64(len(sent)))
	}
	return nil
}

// TestFlowsAgree is TestNumbersAgree for UDP: a flow is what comes from one port, while it is not idle for long.
func TestFlowsAgree(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{Pods: 3}), filepath.Join(run, "api.sock")}
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.EchoUDP(pod.Addr4.String() + ":5353"))
	}
	l.Publish("dns", lab.DNSAddr, "UDP", "", 5353, l.Pods...)
	log := filepath.Join(t.TempDir(), "access.log")
	args := []string{"--handover-socket", filepath.Join(run, "handover.sock"), "--default-policy", "access-log=all",
		"--access-log-file", log, "--udp-timeout", "10m"}
	l.Start(args...)
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })

	const clients, each = 4, 40
	var n tally
	var ports sync.Map // that there have been: a port may come again, and goes on with its flow
	open := func() (testbed.UDPClient, error) {
		c, err := l.Client.Dial(t.Context(), "udp", lab.DNSAddr)
		if err != nil {
			return testbed.UDPClient{}, err
		}
		if _, known := ports.LoadOrStore(c.LocalAddr().String(), true); !known {
			n.connections.Add(1)
		}
		return testbed.UDPClient{Conn: c}, nil
	}
	var long []testbed.UDPClient
	for range 20 {
		c, err := open()
		testbed.Check(t, err)
		defer c.Close()
		long = append(long, c)
	}
	passThrough := func() {
		t.Helper()
		for _, c := range long {
			testbed.Check(t, n.flow(c, 3))
		}
	}
	var all sync.WaitGroup
	over := make(chan struct{}) // the second hand-over
	for range clients {
		all.Go(func() {
			for i := 0; i < each || !ended(over); i++ {
				c, err := open()
				if err == nil {
					err = errors.Join(n.flow(c, 1+rand.IntN(20)), c.Close())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	l.handOverTwice(args, passThrough)
	close(over)
	all.Wait()
	if t.Failed() {
		return
	}
	for _, pod := range l.Pods { // bytes of what is open are counted some later
		l.run("drain", pod.Addr4.String()+":5353", "--service", "default/dns", "--deadline", "100ms", "--force")
	}
	l.Eventually("all have ended", func() bool { return read[api.Status](l, "status").Open.UDP == 0 })
	flows, bytes := n.connections.Load(), n.bytes.Load()
	l.agreeOn("dns", api.Counted{Picks: flows, BytesIn: bytes, BytesOut: bytes})
	of := l.series("dns", "UDP")
	l.compare(map[string]pair{
		"picks":     {of("picks_total", "", "", ""), flows},
		"bytes in":  {of("bytes_total", `direction="in",`, "", ""), bytes},
		"bytes out": {of("bytes_total", `direction="out",`, "", ""), bytes},
		"flows":     {l.Metric(`sluice_connections_total{protocol="UDP",result="established"}`), flows},
	})
	l.logAgrees(&n, log)
}

// ended reports whether a channel is closed.
func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
