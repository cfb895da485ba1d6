package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) {
	if status, ok := Main(os.Args[1:]); ok {
		os.Exit(status)
	}
	os.Exit(testbed.Main(m))
}

// role starts the test binary in a role and returns it with its standard output.
func role(t *testing.T, name string, config any, files ...*os.File) (*exec.Cmd, io.WriteCloser, *bufio.Reader) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, os.Args[0], Args(name, config)...)
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	in, err := cmd.StdinPipe()
	testbed.Check(t, err)
	out, err := cmd.StdoutPipe()
	testbed.Check(t, err)
	testbed.Check(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return cmd, in, bufio.NewReader(out)
}

// serving starts a server with one socket of each kind and returns their addresses.
func serving(t *testing.T) map[string]string {
	t.Helper()
	addrs := make(map[string]string)
	var files []*os.File
	kinds := []string{HTTP, Sized, Echo, EchoGRO}
	for _, kind := range kinds {
		var f *os.File
		if kind == Echo || kind == EchoGRO {
			pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
			testbed.Check(t, err)
			defer pc.Close()
			addrs[kind] = pc.LocalAddr().String()
			f, err = pc.(*net.UDPConn).File()
			testbed.Check(t, err)
		} else {
			ln, err := net.Listen("tcp4", "127.0.0.1:0")
			testbed.Check(t, err)
			defer ln.Close()
			addrs[kind] = ln.Addr().String()
			if f, err = ln.(*net.TCPListener).File(); err != nil {
				t.Fatal(err)
			}
		}
		defer f.Close()
		files = append(files, f)
	}
	role(t, RoleServe, ServeConfig{Kinds: kinds}, files...)
	return addrs
}

// asked runs a client and returns what it says.
func asked(t *testing.T, c AskConfig) Result {
	t.Helper()
	_, in, out := role(t, RoleAsk, c)
	line, err := out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != Begin {
		t.Fatalf("the client began with %q, %v", line, err)
	}
	in.Close() // ends an idle client
	var r Result
	testbed.Check(t, json.NewDecoder(out).Decode(&r))
	return r
}

func TestClientsAreAnswered(t *testing.T) {
	addrs := serving(t)
	relay, err := NewRelay(RelayConfig{
		TCP:     []Forward{{"127.0.0.1:30081", []string{addrs[Sized]}}},
		UDP:     []Forward{{"127.0.0.1:30082", []string{addrs[Echo]}}, {"127.0.0.1:30083", []string{addrs[EchoGRO]}}},
		Timeout: time.Second,
	})
	testbed.Check(t, err)
	defer relay.Close()
	for _, way := range []struct{ name, tcp, udp, batches string }{
		{"direct", addrs[Sized], addrs[Echo], addrs[EchoGRO]},
		{"relayed", "127.0.0.1:30081", "127.0.0.1:30082", "127.0.0.1:30083"},
	} {
		for _, c := range []AskConfig{
			{Kind: KeepAlive, Number: 1, Request: 64, Response: 200},
			{Kind: KeepAlive, Number: 300, Request: 64, Response: 200},
			{Kind: KeepAlive, Number: 4, Response: 1, Mixed: true},
			{Kind: Short, Number: 8, Request: 64, Response: 200},
			{Kind: Idle, Number: 300, Request: 64, Response: 200},
			{Kind: Datagrams, Number: 1, Request: 64},
			{Kind: Datagrams, Number: 64, Request: 64},
			{Kind: Datagrams, Number: 2, Request: 1200, Window: 64},
			{Kind: Datagrams, Number: 2, Request: 1200, Window: 32, GSO: true},
			{Kind: Datagrams, Number: 2, Request: 1200, Window: 32, GSO: true, GRO: true},
			{Kind: Datagrams, Number: 4, Request: 64, Fresh: true},
		} {
			if c.Addrs = []string{way.tcp}; c.Kind == Datagrams {
				c.Addrs = []string{way.udp}
				if c.GRO {
					c.Addrs = []string{way.batches}
				}
			}
			c.Warm, c.Duration, c.Patience = 20*time.Millisecond, 100*time.Millisecond, time.Minute
			t.Run(fmt.Sprintf("%s/%s-%d-%d-%v-%v", way.name, c.Kind, c.Number, c.Window, c.GSO, c.GRO), func(t *testing.T) {
				r := asked(t, c)
				for r.Operations == 0 && c.Kind != Idle && c.Duration < 10*time.Second {
					c.Duration *= 3 // other programs may have had both cores
					r = asked(t, c)
				}
				if r.Errors > 0 || r.Lost > 0 {
					t.Errorf("%d errors (%s), %d lost", r.Errors, r.FirstError, r.Lost)
				}
				if c.Kind == Idle {
					if r.Established != c.Number || r.Finished > 0 {
						t.Errorf("%d of %d were established, %d ended", r.Established, c.Number, r.Finished)
					}
					return
				}
				if r.Operations == 0 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max || r.Seconds < 0.1 {
					t.Errorf("implausible: %+v", r)
				}
			})
		}
	}
}

// TestErrorsAreSeen asks where no process listens, and a server that closes at once.
func TestErrorsAreSeen(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	testbed.Check(t, err)
	rude := ln.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	defer func() {
		ln.Close()
		<-done
	}()
	for name, c := range map[string]AskConfig{
		"refused":               {Kind: Short, Addrs: []string{"127.0.0.1:9"}, Response: 1},
		"hangs up":              {Kind: KeepAlive, Addrs: []string{rude}, Response: 1},
		"no process there, UDP": {Kind: Datagrams, Addrs: []string{"127.0.0.1:9"}, Request: 64},
	} {
		t.Run(name, func(t *testing.T) {
			c.Number, c.Duration = 1, 50*time.Millisecond
			if r := asked(t, c); r.Operations > 0 || r.Errors == 0 || r.FirstError == "" {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestLossIsCounted has a server that answers every second datagram.
func TestLossIsCounted(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	testbed.Check(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for i := 0; ; i++ {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if i%2 == 0 {
				_, _ = pc.WriteTo(buf[:n], from)
			}
		}
	}()
	defer func() {
		pc.Close()
		<-done
	}()
	r := asked(t, AskConfig{Kind: Datagrams, Addrs: []string{pc.LocalAddr().String()}, Number: 1, Request: 64, Window: 8, Duration: 1200 * time.Millisecond})
	if r.Lost == 0 || r.Lost > r.Operations+8 || r.Operations > r.Lost+8 {
		t.Errorf("%d were lost and %d answered: half of them are never answered", r.Lost, r.Operations)
	}
}

func TestDNSIsAsked(t *testing.T) {
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		testbed.Missing(t, "dnsmasq is not installed")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, "dnsmasq", "-k", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file=", "--user=root",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--port=5300", "--address=/svc.test/192.0.2.77")
	cmd.Stderr = &log
	testbed.Check(t, cmd.Start())
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	deadline := time.Now().Add(10 * time.Second)
	for { // dnsmasq does not report that it listens
		r := asked(t, AskConfig{Kind: DNS, Addrs: []string{"127.0.0.1:5300"}, Number: 2, Name: "a.svc.test.", Duration: 50 * time.Millisecond})
		if r.Operations > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no answer: %+v\n%s", r, log.String())
		}
	}
	if r := asked(t, AskConfig{Kind: DNS, Addrs: []string{"127.0.0.1:5300"}, Number: 2, Name: "a.elsewhere.", Duration: 50 * time.Millisecond}); r.Operations > 0 {
		t.Errorf("a refused question counts as answered: %+v", r)
	}
}

func TestWrongConfigurationIsRefused(t *testing.T) {
	for name, c := range map[string]AskConfig{
		"no address":       {Kind: Short, Number: 1, Response: 1},
		"no number":        {Kind: Short, Addrs: []string{"127.0.0.1:1"}, Response: 1},
		"not numeric":      {Kind: Short, Addrs: []string{"localhost:1"}, Number: 1, Response: 1},
		"too long":         {Kind: KeepAlive, Addrs: []string{"127.0.0.1:1"}, Number: 1, Response: largest + 1},
		"batch too large":  {Kind: Datagrams, Addrs: []string{"127.0.0.1:1"}, Number: 1, Request: 2000, Window: 33, GSO: true},
		"window too large": {Kind: Datagrams, Addrs: []string{"127.0.0.1:1"}, Number: 1, Request: 64, Window: 65},
		"bad name":         {Kind: DNS, Addrs: []string{"127.0.0.1:1"}, Number: 1, Name: "no dot"},
	} {
		if err := ask(c, strings.NewReader(""), io.Discard); err == nil {
			t.Errorf("%s: %+v was taken", name, c)
		}
	}
}

// serveSlowly starts a server of one worker, whose requests take so long each, and returns where it is.
func serveSlowly(t *testing.T, takes time.Duration) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	testbed.Check(t, err)
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	testbed.Check(t, err)
	defer f.Close()
	role(t, RoleServe, ServeConfig{Kinds: []string{Sized}, Work: map[int]time.Duration{0: takes}}, f)
	return ln.Addr().String()
}

// TestWorker: a server of one worker answers one request after the other, so that more clients get no more.
func TestWorker(t *testing.T) {
	const takes = 20 * time.Millisecond
	addr := serveSlowly(t, takes)
	r := asked(t, AskConfig{Kind: Short, Addrs: []string{addr}, Number: 5, Request: 64, Response: 200,
		Warm: 20 * time.Millisecond, Duration: 500 * time.Millisecond})
	if most := r.Seconds/takes.Seconds() + 5; r.Errors > 0 || r.Operations == 0 || float64(r.Operations) > most ||
		r.P50 < float64(takes.Microseconds()) {
		t.Errorf("%+v, want at most %.0f requests of %v", r, most, takes)
	}
}

// TestOpenLoop: requests are due whether the ones before have been answered or not, and what they wait for that counts.
func TestOpenLoop(t *testing.T) {
	const takes = 10 * time.Millisecond // so that a half of 200 in a second are answered in it
	addr := serveSlowly(t, takes)
	for _, poisson := range []bool{false, true} {
		r := asked(t, AskConfig{Kind: KeepAlive, Addrs: []string{addr}, Number: 1, Request: 64, Response: 200,
			Rate: 200, Poisson: poisson, Duration: time.Second})
		if r.Errors > 0 || r.Operations == 0 || r.Operations > 110 || r.Max < 300_000 {
			t.Errorf("Poisson %v: %+v, want the last to have waited for those before, for about half a second", poisson, r)
		}
	}
}
