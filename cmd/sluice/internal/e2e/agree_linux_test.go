package e2e

import (
	"bytes"
	"encoding/json"
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

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
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

// TestNumbersAgree: after a load of many clients over two hand-overs the status, the page, the metrics, the access log
// and the clients count the same connections and bytes.
func TestNumbersAgree(t *testing.T) {
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{Pods: 3}), filepath.Join(run, "api.sock")}
	l.ServeEcho()
	log := filepath.Join(t.TempDir(), "access.log")
	args := []string{"--handover-socket", filepath.Join(run, "handover.sock"), "--access-log", "all",
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
			for i := 0; ; i++ {
				if i >= each {
					select {
					case <-over:
						return
					default:
					}
				}
				if err := n.short(l, (i+k)%10 == 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		passThrough()
		before := l.Process
		l.Launch(l.Command(append([]string{"--manifests", l.Dir}, args...)...))
		<-before.Done()
		passThrough()
	}
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
	want := api.Counted{Picks: connections, BytesIn: bytes, BytesOut: bytes}
	if s := read[api.Status](l, "status"); s.Counted != want || s.HandOvers.Count != 2 {
		l.T.Errorf("after %d hand-overs the status counts %+v, want %+v", s.HandOvers.Count, s.Counted, want)
	}
	if got := l.webPort().Counted; got != want {
		l.T.Errorf("the Service counts %+v, want %+v", got, want)
	}
	var sum api.Counted
	for _, e := range read[api.List[api.Endpoint]](l, "endpoints", "default/web").Items {
		sum.Picks, sum.BytesIn, sum.BytesOut = sum.Picks+e.Picks, sum.BytesIn+e.BytesIn, sum.BytesOut+e.BytesOut
	}
	if sum != want {
		l.T.Errorf("its endpoints count %+v, want %+v", sum, want)
	}
	of := func(series, more, side string) float64 {
		return l.Metric("sluice_service_" + series + "{" + more + `,service_name="web",service_namespace="default",` +
			`service_port=""` + side + "}")
	}
	const tcp = `protocol="TCP"`
	for what, x := range map[string]struct {
		got  float64
		want uint64
	}{
		"picks":     {of("picks_total", tcp, ""), connections},
		"connects":  {of("connect_seconds_count", tcp, ""), connections},
		"answers":   {of("first_byte_seconds_count", tcp, ""), connections},
		"ends":      {of("connection_duration_seconds_count", tcp, ""), connections},
		"resets":    {of("resets_total", tcp+`,reason="established"`, `,side="client"`), resets},
		"bytes in":  {of("bytes_total", `direction="in",`+tcp, ""), bytes},
		"bytes out": {of("bytes_total", `direction="out",`+tcp, ""), bytes},
		"accepted":  {l.Metric("sluice_tcp_accepted_connections_total"), connections},
	} {
		if x.got != float64(x.want) {
			l.T.Errorf("the metrics have %v %s, want %d", x.got, what, x.want)
		}
	}
	_, page := l.Get("http://127.0.0.1:10249/v1/services")
	var list api.List[api.Service]
	if err := json.Unmarshal([]byte(page), &list); err != nil || len(list.Items) != 1 || list.Items[0].Counted != want {
		l.T.Errorf("the metrics address has %s, %v", page, err)
	}
	_, page = l.Get("http://127.0.0.1:10249/service?namespace=default&name=web")
	row := page[max(strings.Index(page, "<tbody>"), 0):]
	if cell := fmt.Sprintf(`<td class="number">%s</td>`, grouped(connections)); !strings.Contains(row, cell) {
		l.T.Errorf("the page of the Service has no %s:\n%s", cell, row)
	}
	l.logAgrees(n, log)
}

// grouped writes a number as the page does, with commas.
func grouped(n uint64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// logAgrees compares the access log with what clients have done. A port may have had several connections.
func (l looker) logAgrees(n *tally, log string) {
	l.T.Helper()
	text, err := os.ReadFile(log)
	testbed.Check(l.T, err)
	var in, out, lines uint64
	ends := make(map[string]uint64)
	for line := range strings.Lines(string(text)) {
		var e accessLine
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Service != "web" || e.Endpoint == "" {
			l.T.Fatalf("%q: %v", line, err)
		}
		lines, in, out = lines+1, in+e.In, out+e.Out
		ends[e.End]++
	}
	connections, resets, bytes := n.connections.Load(), n.resets.Load(), n.bytes.Load()
	if lines != connections || in != bytes || out != bytes || ends["CD"] != resets || ends["--"] != connections-resets {
		l.T.Errorf("the access log has %d lines, %d bytes in, %d out, and ends %v; want %d, %d, and %d resets", lines, in, out,
			ends, connections, bytes, resets)
	}
}
