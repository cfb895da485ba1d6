package handover

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// spy stands between a process that serves and one that takes over from it, and does
// something at one of their messages.
type spy struct {
	ln    int    // where the successor asks
	to    string // where the running process is asked
	at    int    // number of the message
	act   func() // before that is passed on
	count int    // of messages
	kind  byte   // of the message at which it was done, 0 if there was none
	wg    sync.WaitGroup
}

// newSpy listens at a path. It works for one conversation.
func newSpy(t *testing.T, path, to string, at int, act func()) *spy {
	t.Helper()
	ln, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(ln, &unix.SockaddrUnix{Name: path}), unix.Listen(ln, 4))
	}
	testbed.Check(t, err)
	s := &spy{ln: ln, to: to, at: at, act: act}
	s.wg.Go(s.run)
	return s
}

// close ends the spy and waits for its end.
func (s *spy) close() {
	_ = unix.Shutdown(s.ln, unix.SHUT_RDWR)
	s.wg.Wait()
	_ = unix.Close(s.ln)
}

func (s *spy) run() {
	for s.count == 0 { // a successor first only looks whether anybody is there
		taker, _, err := unix.Accept4(s.ln, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		giver, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil && unix.Connect(giver, &unix.SockaddrUnix{Name: s.to}) == nil {
			s.relay(giver, taker)
		}
		if s.count > 0 {
			_ = unix.Shutdown(s.ln, unix.SHUT_RDWR) // as that of a process that has ended: a successor looks again
		}
		_ = unix.Close(giver)
		_ = unix.Close(taker)
	}
}

// relay passes messages on until either side ends, one at a time, so that each run
// counts them alike.
func (s *spy) relay(giver, taker int) {
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*253))
	for {
		ready := []unix.PollFd{{Fd: int32(giver), Events: unix.POLLIN}, {Fd: int32(taker), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, int(testbed.Patience.Milliseconds())); err != nil && err != unix.EINTR {
			return
		}
		for i, pair := range [][2]int{{giver, taker}, {taker, giver}} {
			if ready[i].Revents == 0 {
				continue
			}
			n, oobn, _, _, err := unix.Recvmsg(pair[0], buf, oob, unix.MSG_CMSG_CLOEXEC)
			if err != nil || n == 0 {
				return
			}
			if s.count == s.at && s.act != nil {
				s.kind = buf[0]
				s.act()
			}
			s.count++
			_ = unix.Sendmsg(pair[1], buf[:n], oob[:oobn], nil, unix.MSG_NOSIGNAL) // who is dead does not mind
			closeRights(oob[:oobn])
		}
	}
}

func closeRights(oob []byte) {
	all, _ := unix.ParseSocketControlMessage(oob)
	for i := range all {
		fds, _ := unix.ParseUnixRights(&all[i])
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}

// process is a process that takes over through a spy.
type process struct {
	*testbed.Cmd
	socket string
	ended  chan struct{}
}

func (h *process) pid() int { return h.Process.Pid }

func (h *process) alive() bool {
	select {
	case <-h.ended:
		return false
	default:
		return true
	}
}

// kill returns when the process is gone.
func (h *process) kill() {
	_ = h.Process.Kill()
	<-h.ended
}

// succeed has the next process take over from cur, and returns it when one of both serves
// and the other, if it is not to stay, has ended. kind is that of the message at which
// act was called, 0 if there are not so many.
func (n *line) succeed(cur *process, round, at int, act func(giver, taker *process)) (next *process, kind byte) {
	n.T.Helper()
	next = &process{socket: filepath.Join(filepath.Dir(n.socket), fmt.Sprintf("s%d", round)), ended: make(chan struct{})}
	lead := len(n.logged())
	serving := func() bool { return strings.Contains(n.logged()[lead:], "\tserving\t") }
	started := make(chan struct{})
	var s *spy
	if cur != nil {
		s = newSpy(n.T, next.socket, cur.socket, at, func() {
			<-started
			act(cur, next)
		})
	}
	// Mode winuserspace, since that has no rules to probe, which takes long.
	next.Cmd = n.Command("--manifests", n.Dir, "--proxy-mode", "winuserspace", "--handover-socket", next.socket)
	next.Stdout, next.Stderr = n.File, n.File
	if err := next.Start(); err != nil {
		n.T.Fatal(err)
	}
	close(started)
	go func() {
		_ = next.Wait()
		close(next.ended)
	}()
	n.T.Cleanup(next.kill)
	if cur == nil {
		n.Eventually("the first process serves", serving)
		return next, 0
	}
	n.Eventually("one of both is left, or none", func() bool {
		return !next.alive() || !cur.alive() && serving()
	})
	s.close()
	return next, s.kind
}

// descriptors returns how many a process has open.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	open, err := testbed.OpenFiles(pid)
	testbed.Check(t, err)
	return len(open)
}

// limitDescriptors sets how many descriptors a process may have.
func limitDescriptors(t *testing.T, pid int, limit uint64) {
	t.Helper()
	var was unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was)
	if err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(limit, was.Max), Max: was.Max}, nil)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
}

// assoc is an SCTP association that is to go on, of the kernel or of a program.
type assoc struct {
	n    *line
	ends testbed.SCTPEnds
	held testbed.SCTPClient // nil where nothing speaks SCTP
	asks int
}

// newAssoc has a pod serve SCTP. It is for the time before the start.
func (n *line) newAssoc() *assoc {
	n.T.Helper()
	ends, err := testbed.FindSCTPEnds()
	if err != nil {
		n.T.Logf("without SCTP: %v", err)
		return &assoc{n: n}
	}
	ends.Echo(n.T, n.Pods[0])
	n.Write("sig.yaml", lab.SCTPService, testbed.SliceManifest("sig", 1, ends.EchoPort, "SCTP", n.Pods[0].Addr4.String()))
	return &assoc{n: n, ends: ends}
}

// renew opens it, instead of one from before.
func (a *assoc) renew() {
	a.n.T.Helper()
	if a.ends.OpenFrom == nil {
		return
	}
	if a.held != nil {
		a.held.Abandon()
	}
	held, err := a.ends.Open(a.n.Client, netip.MustParseAddrPort("10.96.0.38:3868"))
	if err != nil {
		a.n.T.Fatal(err)
	}
	a.held = held
	a.works()
}

// works wants an echo.
func (a *assoc) works() {
	a.n.T.Helper()
	if a.held == nil {
		return
	}
	a.asks++
	if err := a.held.Ask(fmt.Sprintf("line %d.", a.asks)); err != nil {
		a.n.T.Fatalf("an association from before: %v", err)
	}
}

func (a *assoc) close() {
	if a.held != nil {
		a.held.Abandon()
	}
}

// TestEveryStep has either process killed, or run out of descriptors, the successor also without any that become free,
// at every message of a handover. Afterwards exactly one of both has everything: a connection from before goes
// on, unless the one that had it was killed, and then it ends; so does an association of
// SCTP.
func TestEveryStep(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	t.Parallel()
	n := newLine(t, testbed.Config{Pods: 1})
	n.ServeEcho()
	sig := n.newAssoc()
	round := 0
	next := func(cur *process, at int, act func(giver, taker *process)) (*process, byte) {
		round++
		return n.succeed(cur, round, at, act)
	}
	cur, _ := next(nil, 0, nil)
	c := n.Hold()
	c.Works()
	sig.renew()
	defer sig.close()
	heir, _ := next(cur, -1, nil)
	if cur.alive() || !heir.alive() {
		t.Fatal("a handover that nothing disturbs does not work")
	}
	c.Works()
	sig.works()
	cur = heir
	every := 1
	if testing.Short() {
		every = 4
	}
	const committed = 15 // the message by which the successor says that it has everything
	always, never, last := func(byte) bool { return true }, func(byte) bool { return false }, func(kind byte) bool { return kind == committed }
	for _, f := range []struct {
		what string
		act  func(giver, taker *process)
		ends func(kind byte) bool // a connection from before may end with who is killed
	}{
		{"the successor is killed", func(_, taker *process) { taker.kill() }, last},
		{"the running process is killed", func(giver, _ *process) { giver.kill() }, always},
		{"the successor runs out of descriptors",
			func(_, taker *process) { limitDescriptors(t, taker.pid(), uint64(descriptors(t, taker.pid()))) }, never},
		{"the successor cannot open anything any more",
			func(_, taker *process) { limitDescriptors(t, taker.pid(), 3) }, never},
		{"the running process runs out of descriptors",
			func(giver, _ *process) { limitDescriptors(t, giver.pid(), uint64(descriptors(t, giver.pid()))) }, never},
	} {
		kept, at := 0, 0
		for more := true; more; at += every {
			heir, kind := next(cur, at, f.act)
			more = kind != 0
			what := fmt.Sprintf("%s at message %d, of type %d", f.what, at, kind)
			if more && !heir.alive() && f.ends(kind) {
				<-cur.ended // it finds out that it has nothing any more
				heir, _ = next(nil, 0, nil)
			}
			left := slices.DeleteFunc([]*process{cur, heir}, func(p *process) bool { return !p.alive() })
			if len(left) != 1 {
				t.Fatalf("%s: %d processes are left", what, len(left))
			}
			cur = left[0]
			limitDescriptors(t, cur.pid(), 1024)
			switch ok, err := goesOn(c); {
			case err != nil || !ok && !f.ends(kind):
				t.Fatalf("%s: a connection from before works %v, %v", what, ok, err)
			case ok:
				c.Works()
				kept++
			default:
				c = n.Hold()
			}
			n.Hold().Works()
			if f.ends(kind) { // with its connection, or not
				sig.renew()
			} else {
				sig.works()
			}
			if t.Failed() {
				t.Fatal(what)
			}
		}
		t.Logf("%s at each of %d messages; a connection from before outlived %d of those", f.what, at-every, kept)
	}
}

// goesOn reports whether a connection still works, or has ended, which must be one of both.
func goesOn(c *testbed.Talker) (bool, error) {
	_ = c.SetDeadline(time.Now().Add(testbed.Patience))
	_, _ = io.WriteString(c, "ping")
	_, err := io.ReadFull(c, make([]byte, 4))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, errors.New("hangs")
	}
	return err == nil, nil
}
