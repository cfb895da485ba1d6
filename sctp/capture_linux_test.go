package sctp

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// capture writes what passes a host's eth0 into a file until stop is called, which
// returns its name.
func capture(t *testing.T, h *testbed.Host) (stop func() string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), h.Name+".pcap")
	cmd := h.Command(context.Background(), "dumpcap", "-q", "-i", "eth0", "-f", "ip proto 132", "-w", file, "-a", "duration:120")
	var said testbed.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	check(t, cmd.Start())
	for deadline := time.Now().Add(patience); !strings.Contains(said.String(), "File:"); {
		if time.Now().After(deadline) {
			t.Fatalf("dumpcap does not begin: %s", said.String())
		}
		time.Sleep(10 * time.Millisecond) // it reports the start only in its output
	}
	return func() string {
		// The kernel hands packets over in blocks, the last of them by a timer, and
		// dumpcap does not wait for that.
		time.Sleep(700 * time.Millisecond)
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("dumpcap: %v: %s", err, said.String())
		}
		return file
	}
}

// A whole association, seen on both sides of the proxy, has nothing that Wireshark
// complains of: no checksum, no sequence, no malformed chunk. Only pion's HEARTBEAT is
// malformed when it leaves pion (1.11.3 and 1.12.1): it has no Heartbeat Info, since
// the chunk's Marshal is not the marshal that is called.
func TestCapture(t *testing.T) {
	l := only(t, Packet, testbed.Config{Pods: 1}, settings{})
	if _, err := exec.LookPath("tshark"); err != nil {
		testbed.Missing(t, err.Error())
	}
	accepted := l.serve(l.Pods...)
	stops := []func() string{capture(t, l.Client), capture(t, l.Pods[0])}
	client := l.dial(l.Client)
	server := l.accept(accepted[0])
	for i, size := range []int{1, 1000, 20000, 100000} {
		m := message{stream: uint16(i), ppid: 46, unordered: i == 1, data: bytes.Repeat([]byte{byte(i)}, size)}
		ask(t, client, server, m)
		ask(t, server, client, m)
	}
	client.(*pionPeer).a.ActiveHeartbeat() // as it does by itself where time has run short
	report(t, client.shutdown())
	l.eventually("the association is over", func(s Stats) bool { return s.Completed == 1 })
	var notes [2]string
	for i, stop := range stops {
		file := stop()
		shark := func(filter string, fields ...string) string {
			args := []string{"-r", file, "-o", "sctp.checksum:CRC-32c", "-Y", filter, "-T", "fields"}
			for _, f := range fields {
				args = append(args, "-e", f)
			}
			cmd := exec.Command("tshark", args...)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("tshark %v: %v", args, err)
			}
			return strings.TrimSpace(string(out))
		}
		const bad = "sctp.checksum.status != 1 || (_ws.malformed || _ws.expert.severity >= 0x600000) && !(sctp.chunk_type == 4 && sctp.chunk_length == 4)"
		if got := shark(bad, "frame.number", "sctp.chunk_type", "sctp.checksum.status", "_ws.expert.message"); got != "" {
			t.Errorf("side %d: complaints:\n%s", i, got)
		}
		// An end that is short of time sends again. Then both sides see it.
		notes[i] = shark("_ws.expert.severity == 0x400000", "_ws.expert.message")
		if got := shark("sctp.parameter_type == 5 || sctp.parameter_type == 6", "frame.number"); got != "" {
			t.Errorf("side %d: addresses in frames %s", i, got)
		}
		seen := make(map[string]bool)
		for _, kind := range strings.FieldsFunc(shark("sctp", "sctp.chunk_type"), func(r rune) bool { return r == ',' || r == '\n' }) {
			seen[kind] = true
		}
		for _, kind := range []string{"1", "2", "10", "11", "64", "3", "4", "7", "8", "14"} { // INIT to SHUTDOWN COMPLETE, data as I-DATA
			if !seen[kind] {
				t.Errorf("side %d: no chunk of type %s, only %v", i, kind, seen)
			}
		}
	}
	if notes[0] != notes[1] {
		t.Errorf("one side sees %q, the other %q", notes[0], notes[1])
	}
}
