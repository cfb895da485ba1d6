package tcp

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// TestUrgentData sends bytes after a TCP urgent byte: a read stops short at the
// urgent mark, and what is behind it must not be lost.
func TestUrgentData(t *testing.T) {
	p := startProxy(t, nil, echoing(t))
	c := p.dial()
	roundTrip(t, c)
	sendUrgent(t, c, "ab!", "cd")
	got := make([]byte, 4)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "abcd" {
		t.Errorf("echo = %q, %v; want abcd", got, err)
	}
}

// sendUrgent sends bytes of which the last is urgent, and others at once.
func sendUrgent(t *testing.T, c *net.TCPConn, urgent, then string) {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	var sendErr error
	check(t, raw.Write(func(fd uintptr) bool {
		sendErr = errors.Join(unix.Send(int(fd), []byte(urgent), unix.MSG_OOB), unix.Send(int(fd), []byte(then), 0))
		return true
	}))
	check(t, sendErr)
}

// TestStalledReader has a server read nothing while the client sends as much as
// the proxy takes: what waits in between is one read or one pipe.
func TestStalledReader(t *testing.T) {
	goOn := make(chan struct{})
	got := make(chan int64, 1)
	p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
		<-goOn
		n, _ := io.Copy(io.Discard, plain{c})
		got <- n
	}))
	c := p.dial()
	sent := stall(t, c)
	if buffers, pipes := p.lent(); buffers+pipes != 1 {
		t.Errorf("%d buffers and %d pipes wait for the server, want one of them", buffers, pipes)
	}
	close(goOn)
	check(t, c.CloseWrite())
	if n := <-got; n != sent {
		t.Errorf("the server got %d bytes, %d were sent", n, sent)
	}
}

// stall sends until no more is taken for a while, and returns how much was.
func stall(t *testing.T, c *net.TCPConn) (sent int64) {
	t.Helper()
	for chunk := make([]byte, 1<<20); ; {
		check(t, c.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
		n, err := c.Write(chunk)
		sent += int64(n)
		if err != nil {
			return sent
		}
		if sent > 1<<30 {
			t.Fatal("1 GiB was taken on behalf of a server that reads nothing")
		}
	}
}

// TestBytesOfTheLastEvent: what is moved by the very event that ends a connection is
// counted for the backend like everything before.
func TestBytesOfTheLastEvent(t *testing.T) {
	const size = 40 << 10 // is there as a whole before the first read
	for _, end := range []string{"end", "reset"} {
		t.Run(end, func(t *testing.T) {
			asked, answer, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
			p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
				defer close(answered)
				_, _ = io.Copy(io.Discard, plain{c})
				close(asked)
				<-answer
				if _, err := c.Write(make([]byte, size)); err != nil {
					t.Error(err)
				}
				for queued(t, c) > 0 {
					runtime.Gosched()
				}
				if end == "reset" {
					_ = c.SetLinger(0)
				}
				_ = c.Close()
			}))
			c := p.dial()
			if _, err := io.WriteString(c, "question"); err != nil {
				t.Fatal(err)
			}
			check(t, c.CloseWrite())
			<-asked
			release := p.block() // so that the answer and its end come in one event
			close(answer)
			<-answered
			release()
			if n, err := io.Copy(io.Discard, plain{c}); end == "end" && (n != size || err != nil) {
				t.Errorf("the client got %d bytes, %v", n, err)
			}
			p.eventually("the connection has ended", func(s Stats) bool { return s.Active == 0 })
			moved, counted := p.Stats(), p.LB.Counters().All()[0]
			if moved.BytesOut != size || counted.BytesOut != size || counted.BytesIn != uint64(len("question")) {
				t.Errorf("%d bytes were moved to the client; %d, and %d to the backend, are counted for the backend; want %d and %d",
					moved.BytesOut, counted.BytesOut, counted.BytesIn, size, len("question"))
			}
		})
	}
}

// queued returns how many bytes c has sent that its peer has not acknowledged
// (SIOCOUTQ, tcp(7)).
func queued(t *testing.T, c *net.TCPConn) int {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	n := 0
	if e := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return n
}

// TestBulkTakesAPipe: a direction that has filled the buffer has a pipe while its bytes wait, but not at rest, and is
// no longer bulk when only messages follow.
func TestBulkTakesAPipe(t *testing.T) {
	const size = 64 << 20
	goOn := make(chan struct{})
	p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
		_, _ = io.CopyN(io.Discard, plain{c}, size-readOn(io.Discard, plain{c}, goOn))
		_, _ = io.Copy(plain{c}, plain{c})
	}))
	c := p.dial()
	intoBulk(t, p, c, goOn, size)
	p.eventually("an idle direction has no pipe", func(Stats) bool {
		_, pipes := p.lent()
		return queued(t, c) == 0 && pipes == 0
	})
	for range 2 * bulkIdle {
		roundTrip(t, c)
	}
	p.eachShard(func(sh *shard) {
		for c := range sh.All() {
			if c.backend.bulk {
				t.Error("a direction is bulk while only messages are exchanged")
			}
		}
	})
}

// readOn copies a MiB for each value from read, until that is closed, and returns how many bytes it has copied.
func readOn(w io.Writer, c io.Reader, read <-chan struct{}) (n int64) {
	for range read {
		some, _ := io.CopyN(w, c, 1<<20)
		n += some
	}
	return n
}

// intoBulk sends size bytes of newPattern(7) so that their direction has a pipe, and then closes read, upon
// which the backend starts to read. Before that it reads a MiB whenever all is full and there is no pipe: not each of
// the first reads need have been full.
func intoBulk(t *testing.T, p *proxy, c *net.TCPConn, read chan struct{}, size int64) {
	t.Helper()
	check(t, c.SetWriteBuffer(1<<20))
	p.eventually("the backend has answered", func(s Stats) bool { return s.Established == 1 })
	// The loops wait until much more has come than one read takes.
	release := p.block()
	sent := make(chan error, 1)
	go func() { _, err := io.CopyN(c, newPattern(7), size); sent <- err }()
	p.eventually("enough waits for several full reads", func(Stats) bool { return queued(t, c) >= 8*eventloop.ScratchSize })
	release()
	stalled := time.NewTicker(50 * time.Millisecond)
	defer stalled.Stop()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		select {
		case <-stalled.C:
			read <- struct{}{}
		default:
		}
		if _, pipes := p.lent(); pipes == 1 {
			break
		}
		if time.Now().After(deadline) {
			close(read)
			t.Fatalf("no pipe was taken; stats %+v", p.Stats())
		}
	}
	close(read)
	check(t, <-sent)
}

// TestUrgentInBulk: a splice stops before an urgent byte as it does at the end of the stream. What is behind
// the byte arrives, whether the stream goes on or ends.
func TestUrgentInBulk(t *testing.T) {
	for _, end := range []string{"goes on", "ends"} {
		t.Run(end, func(t *testing.T) {
			const size, want = 32 << 20, "abcdefgh"
			read, got := make(chan struct{}), make(chan string, 1)
			p := startProxy(t, nil, backend(t, func(c *net.TCPConn) {
				h := sha256.New()
				early := readOn(h, plain{c}, read)
				if n, err := io.CopyN(h, plain{c}, size-early); err != nil || !bytes.Equal(h.Sum(nil), sum(7, size)) {
					t.Errorf("%d bytes arrive, %v; or others than were sent", n, err)
				}
				tail := make([]byte, len(want))
				n, _ := io.ReadFull(c, tail)
				got <- string(tail[:n])
			}))
			c := p.dial()
			intoBulk(t, p, c, read, size)
			p.eventually("all is acknowledged", func(Stats) bool { return queued(t, c) == 0 })
			release := p.block() // so that a splice meets the byte and what follows together
			sendUrgent(t, c, "ab!", "cdefgh")
			if end == "ends" {
				check(t, c.CloseWrite())
			}
			p.eventually("it is there", func(Stats) bool { return queued(t, c) == 0 })
			release()
			if tail := <-got; tail != want {
				t.Errorf("behind the urgent byte %q arrives, want %q", tail, want)
			}
		})
	}
}

// TestRelayAllocatesNothing counts the allocations of the whole process over many
// round trips; the test's own side allocates none.
func TestRelayAllocatesNothing(t *testing.T) {
	p := startProxy(t, nil, echoing(t))
	c := p.dial()
	roundTrip(t, c)
	check(t, c.SetDeadline(time.Time{}))
	const trips = 2000
	msg, got := []byte("ping"), make([]byte, 4)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range trips {
		if _, err := c.Write(msg); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > trips/10 {
		t.Errorf("%d allocations in %d round trips, want none but the runtime's own few", n, trips)
	}
}

// TestConnSize: an idle connection is a conn and what the loop and the kernel have of it. 176 is a size class of Go's
// allocator; the next is 192.
func TestConnSize(t *testing.T) {
	if size := unsafe.Sizeof(conn{}); size > 176 {
		t.Errorf("a conn takes %d bytes, want at most 176", size)
	}
}
