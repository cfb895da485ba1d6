package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

var sample = look.Ended{
	Info: look.Info{Protocol: lb.TCP, Client: netip.MustParseAddrPort("192.0.2.1:4000"),
		Asked:   netip.MustParseAddrPort("10.96.0.1:80"),
		Service: lb.ID{Namespace: "default", Name: "x\x1b[31m\n\"", Port: "http", Protocol: lb.TCP},
		Backend: netip.MustParseAddrPort("[fd00::1]:8080"), Age: 1500 * time.Millisecond, In: 7, Out: 1 << 40,
		Failed: 2, Retransmits: 3, Loop: 1},
	Code: look.ServerData, Wait: 0, Connect: 1234 * time.Microsecond, FirstByte: -1, Scheduler: "lc",
	Tried: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")},
}

// TestFormats: both forms have what is known, on one line whatever names there are.
func TestFormats(t *testing.T) {
	e := &entry{sample, time.Date(2026, 11, 26, 4, 5, 6, 789e6, time.UTC)}
	got := string(appendTCPLog(nil, e))
	if want := "192.0.2.1:4000 [26/Nov/2026:04:05:05.289] 10.96.0.1:80 default_x??31m??_http/[fd00::1]:8080 " +
		"0/1/1500 1099511627776 SD 0/0/0/0/+2 0/0"; got != want {
		t.Errorf("tcplog is\n%q, want\n%q", got, want)
	}
	e.Backend, e.Connect, e.Tried, e.Failed, e.Asked = netip.AddrPort{}, -1, nil, 0, netip.AddrPort{}
	if got = string(appendTCPLog(nil, e)); !strings.Contains(got, "] - ") || !strings.Contains(got, "/<NOSRV> 0/-1/") {
		t.Errorf("without an endpoint it is %q", got)
	}
	line := appendJSON(nil, &entry{sample, e.at})
	var fields map[string]any
	if err := json.Unmarshal(line, &fields); err != nil || bytes.ContainsAny(line, "\n\x1b") {
		t.Fatalf("%q: %v", line, err)
	}
	for key, want := range map[string]any{"time": "2026-11-26T04:05:05.289000Z", "protocol": "TCP",
		"client": "192.0.2.1:4000", "address": "10.96.0.1:80", "namespace": "default", "service": sample.Service.Name,
		"port": "http", "endpoint": "[fd00::1]:8080", "scheduler": "lc", "end": "SD", "failed_attempts": 2.0,
		"failed_endpoints": []any{"10.1.0.1:80", "10.1.0.2:80"}, "wait_ms": 0.0, "connect_ms": 1.234,
		"first_byte_ms": nil, "duration_ms": 1500.0, "bytes_in": 7.0, "bytes_out": float64(1 << 40),
		"retransmits": 3.0, "loop": 1.0} {
		if fmt.Sprint(fields[key]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", key, fields[key], want)
		}
	}
}

// TestLog: each line is written once, whole, also to a file that is renamed meanwhile.
func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := Open(path, JSON, 2, nil, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	add := func(n int) {
		var loops sync.WaitGroup
		for loop := range 2 {
			loops.Go(func() {
				for i := range n {
					e := sample
					e.Loop, e.In = loop, uint64(i)
					l.Add(&e)
				}
			})
		}
		loops.Wait()
	}
	const n = queued / 2 // so that both times fit into the queue, however slow the writer is
	add(n)
	for written := uint64(0); written < 2*n && t.Context().Err() == nil; written, _ = l.Stats() {
		runtime.Gosched() // the test's time bounds it
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.looked = time.Time{}
	l.mu.Unlock()
	add(n)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if written, dropped := l.Stats(); written != 4*n || dropped != 0 {
		t.Errorf("%d are written and %d dropped, want %d", written, dropped, 4*n)
	}
	seen, files := make(map[string]int), 0
	for _, name := range []string{path, path + ".1"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 0 {
			files++
		}
		for line := range strings.Lines(string(text)) {
			var e struct {
				Loop int    `json:"loop"`
				In   uint64 `json:"bytes_in"`
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			seen[fmt.Sprint(e.Loop, e.In)]++
		}
	}
	for what, times := range seen {
		if times != 2 {
			t.Fatalf("%s is there %d times", what, times)
		}
	}
	if len(seen) != 2*n || files != 2 {
		t.Errorf("%d lines in %d files", len(seen), files)
	}
}

// stuck takes nothing until it may.
type stuck struct{ goOn chan struct{} }

func (s stuck) Write([]byte) (int, error) {
	<-s.goOn
	return 0, errors.New("full")
}

// TestStuck: who logs does not wait for what takes nothing, and what is lost is counted, and reported once.
func TestStuck(t *testing.T) {
	s := stuck{make(chan struct{})}
	var reports []error
	l, err := Open(Stdout, TCPLog, 1, s, func(err error) { reports = append(reports, err) })
	if err != nil {
		t.Fatal(err)
	}
	const n = 10 * queued
	for range n {
		e := sample
		e.Loop = 0
		l.Add(&e)
	}
	if _, dropped := l.Stats(); dropped < n-3*queued || dropped >= n {
		t.Errorf("%d of %d are dropped", dropped, n)
	}
	close(s.goOn)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if written, dropped := l.Stats(); written != 0 || dropped != n || len(reports) != 1 {
		t.Errorf("%d are written, %d dropped; reports %v", written, dropped, reports)
	}
}
