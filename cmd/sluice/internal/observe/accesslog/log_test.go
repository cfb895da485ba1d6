package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/lines"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

var sample = look.Ended{
	Info: look.Info{Protocol: lb.TCP, Client: netip.MustParseAddrPort("192.0.2.1:4000"),
		Asked:   netip.MustParseAddrPort("10.96.0.1:80"),
		Service: lb.ID{Namespace: "default", Name: "x\x1b[31m\n\"", Port: "http", Protocol: lb.TCP},
		Backend: netip.MustParseAddrPort("[fd00::1]:8080"), Age: 1500 * time.Millisecond, In: 7, Out: 1 << 40,
		Failed: 2, Retransmits: 3, Loop: 1},
	End: lb.ServerData, Wait: 0, Connect: 1234 * time.Microsecond, FirstByte: -1, Why: lb.ByRetry,
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
	e.Client = netip.AddrPort{} // it has gone before it could be asked for
	if got = string(appendTCPLog(nil, e)); !strings.HasPrefix(got, "- [") || !strings.Contains(got, "] - ") || !strings.Contains(got, "/<NOSRV> 0/-1/") {
		t.Errorf("without an endpoint it is %q", got)
	}
	line := appendJSON(nil, &entry{sample, e.at})
	var fields map[string]any
	if err := json.Unmarshal(line, &fields); err != nil || bytes.ContainsAny(line, "\n\x1b") {
		t.Fatalf("%q: %v", line, err)
	}
	for key, want := range map[string]any{"time": "2026-11-26T04:05:05.289000Z", "protocol": "TCP",
		"client": "192.0.2.1:4000", "address": "10.96.0.1:80", "namespace": "default", "service": sample.Service.Name,
		"port": "http", "endpoint": "[fd00::1]:8080", "why": "retry", "end": "SD",
		"reason": "established", "failed_attempts": 2.0,
		"failed_endpoints": []any{"10.1.0.1:80", "10.1.0.2:80"}, "wait_ms": 0.0, "connect_ms": 1.234,
		"first_byte_ms": nil, "duration_ms": 1500.0, "bytes_in": 7.0, "bytes_out": float64(1 << 40),
		"retransmits": 3.0, "loop": 1.0} {
		if fmt.Sprint(fields[key]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", key, fields[key], want)
		}
	}
}

// TestLog: each line is written once, whole, also to a file that is renamed meanwhile.
func TestLog(t *testing.T) { synctest.Test(t, testLog) } // in whose time a second passes at once

func testLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := Open(path, config.LogJSON, 2, nil, func(err error) { t.Error(err) })
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
	const n = lines.Queued / 2 // so that both times fit into the queue, however slow the writer is
	add(n)
	time.Sleep(reopenEvery) // in synctest's time
	if written, _ := l.Stats(); written != 2*n {
		t.Fatalf("%d are written, want %d", written, 2*n)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
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
	l, err := Open(config.Stdout, config.LogTCPLog, 1, s, func(err error) { reports = append(reports, err) })
	if err != nil {
		t.Fatal(err)
	}
	const n = 10 * lines.Queued
	for range n {
		e := sample
		e.Loop = 0
		l.Add(&e)
	}
	if _, dropped := l.Stats(); dropped < n-3*lines.Queued || dropped >= n {
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

// filling takes so many bytes, and no more until it is emptied.
type filling struct {
	bytes.Buffer
	room int
}

func (f *filling) Write(b []byte) (int, error) {
	n := min(len(b), f.room)
	f.room -= n
	f.Buffer.Write(b[:n])
	if n < len(b) {
		return n, errors.New("no space left")
	}
	return n, nil
}

// TestFull: where there is room for a part of the lines, the others count as lost, and what is written later is not a
// part of the line that was cut off.
func TestFull(t *testing.T) {
	for _, room := range []int{0, 10, 150} {
		to := &filling{room: room}
		var reports []error
		l, err := Open(config.Stdout, config.LogJSON, 1, to, func(err error) { reports = append(reports, err) })
		if err != nil {
			t.Fatal(err)
		}
		text := []byte(strings.Repeat(`{"a":1}`+"\n", 20))
		l.write(text, 20)
		l.write(text, 20)
		to.room = 1 << 20
		l.write(text, 20)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		whole, broken := uint64(0), 0
		for line := range strings.Lines(to.String()) {
			if json.Valid([]byte(line)) && line[0] == '{' {
				whole++
			} else {
				broken++
			}
		}
		if written, dropped := l.Stats(); written != whole || written+dropped != 60 || whole < 20 || broken > 1 {
			t.Errorf("with room for %d bytes %d lines are whole and %d broken, %d count as written and %d as lost", room,
				whole, broken, written, dropped)
		}
		if len(reports) != 1 {
			t.Errorf("with room for %d bytes it is reported %v", room, reports)
		}
	}
}

// TestCannotFollow: where a renamed file cannot be made anew, its lines go on to it, which is reported once.
func TestCannotFollow(t *testing.T) { synctest.Test(t, testCannotFollow) }

func testCannotFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var reports []error
	l, err := Open(filepath.Join(dir, "access.log"), config.LogJSON, 1, nil,
		func(err error) { reports = append(reports, err) })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".1"); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if i%2 == 0 {
			time.Sleep(reopenEvery) // in synctest's time
		}
		l.write([]byte("line\n"), 1)
	}
	text, err := os.ReadFile(filepath.Join(dir+".1", "access.log"))
	if written, dropped := l.Stats(); string(text) != strings.Repeat("line\n", 6) || written != 6 || dropped != 0 {
		t.Errorf("%d are written and %d lost: %q, %v", written, dropped, text, err)
	}
	if len(reports) != 1 || !errors.Is(reports[0], fs.ErrNotExist) {
		t.Errorf("it is reported %v", reports)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	time.Sleep(reopenEvery) // in synctest's time
	l.write([]byte("line\n"), 1)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "access.log")); string(text) != "line\n" {
		t.Errorf("when it can be made again, there is %q, %v", text, err)
	}
}

// brokenVar has this program log to its standard output and end.
const brokenVar = "ACCESSLOG_TEST_BROKEN"

func TestMain(m *testing.M) {
	if os.Getenv(brokenVar) == "" {
		os.Exit(m.Run())
	}
	l, err := Open(config.Stdout, config.LogJSON, 1, os.Stdout, func(error) {})
	if err != nil {
		os.Exit(1)
	}
	e := sample
	e.Loop = 0
	l.Add(&e) // the line waits for others until Close
	_ = l.Close()
	os.Exit(7)
}

// TestBrokenStdout: who reads standard output may end, also at the end of this program, which goes on.
func TestBrokenStdout(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	c := exec.Command(os.Args[0], "-test.run", "^TestBrokenStdout$")
	c.Env, c.Stdout = append(os.Environ(), brokenVar+"=yes"), w
	if err = c.Run(); c.ProcessState.ExitCode() != 7 {
		t.Errorf("it ends by %v", err)
	}
	_ = w.Close()
}
