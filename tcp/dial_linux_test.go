package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const ownProcessVar = "SLUICE_TCP_TEST_OWN_PROCESS"

// firstUnwatchable is the lowest descriptor that this process cannot watch any more.
const firstUnwatchable = 200

// TestNoMoreWatches: a connection whose backend's socket cannot be watched, since there
// are too many watches (ENOSPC, epoll_ctl(2)), waits until it can be. The backend is not
// to blame.
func TestNoMoreWatches(t *testing.T) {
	if !inOwnProcess(t, nil) { // limitWatches cannot be undone
		return
	}
	backend, err := net.Listen("tcp", "127.0.0.1:0") // the kernel completes connections, no process accepts them
	check(t, err)
	defer backend.Close()
	p := startProxy(t, nil, netip.MustParseAddrPort(backend.Addr().String()))
	release := p.block() // the client is not accepted yet
	p.dial()
	limitWatches(t)
	free := takeDescriptors(t)
	if err := unix.Close(free[0]); err != nil { // is for the client
		t.Fatal(err)
	}
	release()
	p.eventually("it is noticed that the backend's socket cannot be watched", func(s Stats) bool { return s.Shortages > 0 || s.DialRefused > 0 })
	for _, fd := range free[1:] {
		check(t, unix.Close(fd))
	}
	p.eventually("the backend has answered", func(s Stats) bool { return s.Established+s.DialGaveUp == 1 })
	if s, failures := p.Stats(), p.LB.Counters().All()[0].Failures; s.Established != 1 || s.DialRefused != 0 || failures != 0 {
		t.Errorf("%d failures of the backend, stats %+v; want a connection and no failure", failures, s)
	}
}

// TestAdoptUnwatchableListener: one of the sockets that are taken over cannot be watched.
// No client is led to it any more.
func TestAdoptUnwatchableListener(t *testing.T) {
	if !inOwnProcess(t, nil) { // limitWatches cannot be undone
		return
	}
	p := startProxy(t, nil, naming(t, "a"))
	next := p.successor(2)
	limitWatches(t)
	l := p.Listening()[0]
	l.FDs = []int{dup(t, l.FDs[0]), dupFrom(t, l.FDs[1], firstUnwatchable)}
	p.Unlisten(p.addr)
	if err := next.AdoptListener(l); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("AdoptListener = %v, want ENOSPC", err)
	}
	for range 20 {
		if name, err := io.ReadAll(next.dial()); err != nil || string(name) != "a" {
			t.Fatalf("answer = %q, %v", name, err)
		}
	}
}

// inOwnProcess runs the test once more in a process of its own, where it returns true.
// In the parent it waits for that and returns false.
func inOwnProcess(t *testing.T, attr *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv(ownProcessVar) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), ownProcessVar+"=1"), attr
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Skipf("this kernel gives no user and network namespaces: %v", err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("in its own process: %v\n%s", err, out.Bytes())
	}
	return false
}

// takeDescriptors takes all that are free below firstUnwatchable.
func takeDescriptors(t *testing.T) (taken []int) {
	t.Helper()
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		check(t, err)
		if fd >= firstUnwatchable {
			_ = unix.Close(fd)
			return taken
		}
		taken = append(taken, fd)
	}
}

// limitWatches has the kernel refuse this process to watch descriptors from
// firstUnwatchable on, as it does all beyond fs.epoll.max_user_watches, which is one
// limit for everybody on the machine.
func limitWatches(t *testing.T) {
	t.Helper()
	const nr, op, fd = 0, 24, 32 // in struct seccomp_data: the low halves of arguments, on a little-endian machine
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	// unless lets a call pass that does not compare as it has to, of which left instructions are to come.
	unless := func(compare uint16, k uint32, left uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, K: k, Jf: left}
	}
	program := []unix.SockFilter{
		load(nr), unless(unix.BPF_JEQ, unix.SYS_EPOLL_CTL, 5),
		load(op), unless(unix.BPF_JEQ, unix.EPOLL_CTL_ADD, 3),
		load(fd), unless(unix.BPF_JGE, firstUnwatchable, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSPC)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	// For all threads.
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog))); errno != 0 {
		t.Skipf("this kernel filters no system calls: %v", errno)
	}
}
