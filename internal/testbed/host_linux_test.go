package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// here names the network namespace of the calling thread.
func here(t *testing.T) string {
	t.Helper()
	return must[string](t)(os.Readlink("/proc/thread-self/ns/net"))
}

func TestDoEntersAndLeaves(t *testing.T) {
	tb := NewT(t, Config{})
	runtime.LockOSThread() // so that "here" is asked of one thread
	defer runtime.UnlockOSThread()
	home := here(t)
	var inNode, inPod, backInNode string
	failure := errors.New("from f")
	err := tb.Node.Do(func() error {
		inNode = here(t)
		tb.Pods[0].Do(func() error { inPod = here(t); return nil })
		backInNode = here(t)
		return failure
	})
	if err != failure {
		t.Errorf("Do returned %v, want what f returned", err)
	}
	if inNode == home || inPod == home || inNode == inPod || backInNode != inNode || here(t) != home {
		t.Errorf("was at %s, then in the node %s, in the pod %s, back in the node %s, back at %s",
			home, inNode, inPod, backInNode, here(t))
	}
}

// TestDoSurvivesPanicAndGoexit checks that threads come home when f does not
// return: t.Fatal is a Goexit.
func TestDoSurvivesPanicAndGoexit(t *testing.T) {
	tb := NewT(t, Config{})
	home := here(t)
	after := make(chan string, 2)
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { after <- here(t); recover() }()
		tb.Node.Do(func() error { panic("in f") })
	})
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { after <- here(t) }()
		tb.Node.Do(func() error { runtime.Goexit(); return nil })
	})
	wg.Wait()
	for range 2 {
		if got := <-after; got != home {
			t.Errorf("thread is in %s, want %s", got, home)
		}
	}
}

// TestDoNeverFreesStrayThread makes the way home fail, by giving up the
// capability that setns(2) needs, and checks that the thread is not used again.
func TestDoNeverFreesStrayThread(t *testing.T) {
	tb := NewT(t, Config{})
	home := here(t)
	result := make(chan error)
	go onOwnThread(func() { // the main thread would stay
		result <- tb.Node.Do(func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of this thread
			var none [2]unix.CapUserData
			return unix.Capset(&header, &none[0])
		})
	})
	if err := <-result; !errors.Is(err, os.ErrPermission) {
		t.Fatalf("Do returned %v, want that it may not leave", err)
	}
	Eventually(t, "threads of this process that are elsewhere have ended", func() bool {
		links, _ := filepath.Glob("/proc/self/task/*/ns/net")
		for _, l := range links {
			if ns, err := os.Readlink(l); err == nil && ns != home {
				return false
			}
		}
		return len(links) > 0
	})
}

// TestConcurrentDo has goroutines of several hosts listen on addresses that exist
// only there, and use the sockets outside.
func TestConcurrentDo(t *testing.T) {
	NoLeaks(t)
	tb := NewT(t, Config{Pods: 4})
	var wg sync.WaitGroup
	for _, h := range tb.hosts {
		for range 8 {
			wg.Go(func() {
				ln, err := h.Listen(t.Context(), "tcp", netip.AddrPortFrom(h.Addr4, 0).String())
				if err != nil {
					t.Error(err)
					return
				}
				defer ln.Close()
				c, err := h.Dial(t.Context(), "tcp", ln.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if s, err := ln.Accept(); err != nil {
					t.Error(err)
				} else {
					s.Close()
				}
			})
		}
	}
	wg.Wait()
}

func TestNamesAreRefused(t *testing.T) {
	tb := NewT(t, Config{})
	if c, err := tb.Node.Dial(t.Context(), "tcp", "localhost:80"); err == nil {
		c.Close()
		t.Error("Dial took a name")
	}
	if ln, err := tb.Node.Listen(t.Context(), "tcp", "localhost:0"); err == nil {
		ln.Close()
		t.Error("Listen took a name")
	}
	if pc, err := tb.Node.ListenPacket(t.Context(), "udp", "localhost:0"); err == nil {
		pc.Close()
		t.Error("ListenPacket took a name")
	}
}

func TestSysctl(t *testing.T) {
	tb := NewT(t, Config{})
	read := func(h *Host) string {
		out := must[[]byte](t)(h.Command(t.Context(), "cat", "/proc/sys/net/ipv4/tcp_fin_timeout").Output())
		return strings.TrimSpace(string(out))
	}
	if err := tb.Node.Sysctl("net.ipv4.tcp_fin_timeout", "17"); err != nil {
		t.Fatal(err)
	}
	if node, pod := read(tb.Node), read(tb.Pods[0]); node != "17" || pod == "17" {
		t.Errorf("set to 17 on the node: node has %s, pod has %s", node, pod)
	}
	if err := tb.Node.Sysctl("net.ipv4.no_such_key", "1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unknown key: got %v", err)
	}
}

func TestCommand(t *testing.T) {
	NoLeaks(t)
	tb := NewT(t, Config{})
	for _, h := range []*Host{tb.Node, tb.Pods[2], tb.Node} {
		out := must[[]byte](t)(h.Command(t.Context(), "ip", "-o", "addr", "show", "dev", "eth0").Output())
		if !strings.Contains(string(out), h.Addr4.String()+"/24") {
			t.Errorf("eth0 of %s: %s", h, out)
		}
	}
	if out, err := tb.Node.Command(t.Context(), "sh", "-c", "echo out; echo diagnosis >&2; exit 3").Output(); err == nil ||
		!strings.Contains(err.Error(), "diagnosis") || string(out) != "out\n" {
		t.Errorf("Output: got %q, %v", out, err)
	}
	out, err := tb.Node.Command(t.Context(), "sh", "-c", "echo out; echo err >&2").CombinedOutput()
	if err != nil || string(out) != "out\nerr\n" {
		t.Errorf("CombinedOutput: got %q, %v", out, err)
	}
	if err := tb.Node.Command(t.Context(), "no-such-program").Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("missing program: got %v", err)
	}
}

func TestCommandEnds(t *testing.T) {
	for name, end := range map[string]func(*Testbed, context.CancelFunc){
		"context": func(_ *Testbed, cancel context.CancelFunc) { cancel() },
		"close":   func(tb *Testbed, _ context.CancelFunc) { tb.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			NoLeaks(t)
			tb := NewT(t, Config{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := tb.Pods[0].Command(ctx, "sleep", "1000")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			end(tb, cancel)
			err := c.Wait()
			if s := c.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
				t.Errorf("process ended with %v", err)
			}
		})
	}
}

// The program start-and-crash starts a process in a host, prints its number, and
// waits to be killed.
func init() {
	programs["start-and-crash"] = func([]string) int {
		if err := Reexec(); err != nil {
			panic(err)
		}
		tb, err := New(Config{})
		if err != nil {
			panic(err)
		}
		c := tb.Node.Command(context.Background(), "sleep", "1000")
		if err := c.Start(); err != nil {
			panic(err)
		}
		fmt.Println(c.Process.Pid)
		c.Wait()
		return 0
	}
}

// TestCommandDiesWithProgram kills a program that has started a process.
func TestCommandDiesWithProgram(t *testing.T) {
	NewT(t, Config{}) // to skip where it cannot be
	program := exec.Command("/proc/self/exe")
	program.Env = append(os.Environ(), programVar+"=start-and-crash")
	stdout := must[io.ReadCloser](t)(program.StdoutPipe())
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	program.Process.Kill()
	program.Wait()
	if err != nil {
		t.Fatal(err)
	}
	pid := must[int](t)(strconv.Atoi(strings.TrimSpace(line)))
	Eventually(t, "the process has died too", func() bool { return ended(pid) })
}

// ended reports whether a process is gone, or a zombie that waits for the
// process that adopted it.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestBlackhole(t *testing.T) {
	NoLeaks(t)
	tb := NewT(t, Config{Pods: 2})
	dark, other := tb.Pods[0], tb.Pods[1]
	serveWho(t, other)
	echo := must[*Server](t)(dark.EchoTCP(":7"))
	defer echo.Close()
	echoUDP := must[*Server](t)(dark.EchoUDP(":7"))
	defer echoUDP.Close()
	to := netip.AddrPortFrom(dark.Addr4, 7).String()

	established := must[net.Conn](t)(tb.Client.Dial(within(t, soon), "tcp", to))
	defer established.Close()
	datagrams := must[net.Conn](t)(tb.Node.Dial(within(t, soon), "udp", to))
	defer datagrams.Close()
	if err := dark.Blackhole(true); err != nil {
		t.Fatal(err)
	}

	// From the client, from the node, and from the pod itself: silence for longer
	// than the 3 s after which an unanswered ARP request would be reported.
	var wg sync.WaitGroup
	for from, address := range map[*Host]string{
		tb.Client: to, tb.Node: netip.AddrPortFrom(dark.Addr6, 7).String(), dark: "192.0.2.100:8080",
	} {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 3500*time.Millisecond)
			defer cancel()
			c, err := from.Dial(ctx, "tcp", address)
			if err == nil {
				c.Close()
			}
			if !IsDropped(err) {
				t.Errorf("%s to the black-holed pod: got %v, want a timeout", from, err)
			}
		})
	}
	expectSilence(t, established)
	expectSilence(t, datagrams)
	expectWho(t, tb.Client, "tcp", netip.AddrPortFrom(other.Addr4, 8080), other.Name)
	wg.Wait()

	if err := dark.Blackhole(false); err != nil {
		t.Fatal(err)
	}
	expectEcho(t, established, "?") // what was written in the dark is sent again
	if _, err := datagrams.Write([]byte("light")); err != nil {
		t.Error(err)
	}
	expectEcho(t, datagrams, "light") // what was sent in the dark is lost
	if err := tb.Router.Blackhole(true); err == nil {
		t.Error("the router was black-holed")
	}
}

// expectSilence writes to a connection and checks that there is no answer and no
// error. What TCP holds back it sends once it can.
func expectSilence(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Write([]byte("?")); err != nil {
		t.Errorf("write: %v", err)
	}
	c.SetReadDeadline(time.Now().Add(brief))
	if n, err := c.Read(make([]byte, 10)); !IsDropped(err) {
		t.Errorf("read %d bytes, %v; want a timeout", n, err)
	}
}

func expectEcho(t *testing.T, c net.Conn, want string) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(soon))
	buf := make([]byte, 10)
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != want {
		t.Errorf("read %q, %v; want %q", buf[:n], err, want)
	}
}

// TestBlackholeNode checks hosts that are not pods.
func TestBlackholeNode(t *testing.T) {
	tb := NewT(t, Config{Pods: 1, RemotePods: 1})
	serveWho(t, tb.Pods[0])
	serveWho(t, tb.RemotePods[0])
	remote := netip.AddrPortFrom(tb.RemotePods[0].Addr4, 8080)
	for _, dark := range []*Host{tb.RemoteNode, tb.Node, tb.Client} {
		if err := dark.Blackhole(true); err != nil {
			t.Fatal(err)
		}
		c, err := tb.Client.Dial(within(t, brief), "tcp", remote.String())
		if err == nil {
			c.Close()
		}
		if !IsDropped(err) {
			t.Errorf("%s is black-holed: got %v, want a timeout", dark, err)
		}
		if err := dark.Blackhole(false); err != nil {
			t.Fatal(err)
		}
		expectWho(t, tb.Client, "tcp", remote, "remote-pod-0")
	}
}
