package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// guest is the first process of the machine: it runs the job, says how it ended and
// powers the machine off.
func guest() {
	status, err := work()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sluice-vm:", err) // the console
		status = hostFailed
	}
	fmt.Printf("\n%s%d\n", statusLine, status)
	_ = drain(1) // a failure cannot be reported
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // if this fails we return, and the kernel panics
}

// mounts are the file systems of a running Linux, in this order.
var mounts = []struct{ kind, at string }{
	{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"},
	{"cgroup2", "/sys/fs/cgroup"}, {"bpf", "/sys/fs/bpf"}, {"devpts", "/dev/pts"},
}

func work() (int, error) {
	for _, m := range mounts {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return 0, err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return 0, fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 0, fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return 0, fmt.Errorf("bring lo up: %w", err)
	}
	// As on every node of Kubernetes: or pods on one bridge would answer each other past
	// conntrack. Namespaces come to have it with its default, which is on.
	if out, err := exec.Command("/sbin/modprobe", "br_netfilter").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("load br_netfilter: %w: %s", err, out)
	}
	b, err := os.ReadFile("/" + jobFile)
	if err != nil {
		return 0, err
	}
	var j job
	if err := json.Unmarshal(b, &j); err != nil {
		return 0, fmt.Errorf("read /%s: %w", jobFile, err)
	}
	out, err := openOutput()
	if err != nil {
		return 0, err
	}
	defer out.Close()
	cmd := exec.Command("/"+binary, j.Args[1:]...)
	cmd.Env, cmd.Dir = j.Env, "/t"
	cmd.Stdout, cmd.Stderr = out, out
	fmt.Println(beginLine)
	err = cmd.Run()
	if err := drain(int(out.Fd())); err != nil {
		return 0, fmt.Errorf("drain the output: %w", err)
	}
	return exitStatus(err)
}

// drain waits until a serial line has sent what was written to it. The first process
// inherits all orphans: the end of one interrupts the wait.
func drain(fd int) error {
	for {
		if err := unix.IoctlSetInt(fd, unix.TCSBRK, 1); err != unix.EINTR {
			return err
		}
	}
}

// exitStatus returns what a shell would call the end of a program.
func exitStatus(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 0, err
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// openOutput opens the serial line that carries the binary's output, byte for byte.
func openOutput() (*os.File, error) {
	f, err := os.OpenFile("/dev/ttyS1", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		t.Oflag &^= unix.OPOST // no carriage returns
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("set up %s: %w", strings.TrimPrefix(f.Name(), "/dev/"), err)
	}
	return f, nil
}
