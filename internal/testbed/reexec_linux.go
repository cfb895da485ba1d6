package testbed

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// stageVar has the stage of a process. It stays set, so that a descendant
// that runs the same program (a fuzzing worker, which would lose its inherited
// descriptors by another exec) does not enter once more.
const (
	stageVar     = "SLUICE_TESTBED_STAGE"
	stageEntered = "entered" // in the namespaces, which are not set up yet
	stageReady   = "ready"
)

func reexec() error {
	switch os.Getenv(stageVar) {
	case stageReady:
		return nil
	case stageEntered:
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "testbed: set up new namespaces:", err)
			os.Exit(1)
		}
		return os.Setenv(stageVar, stageReady)
	}
	child, err := enterNew(0)
	if errors.Is(err, os.ErrPermission) {
		child, err = enterNew(syscall.CLONE_NEWUSER)
	}
	if err != nil {
		return err
	}
	os.Exit(follow(child))
	return nil
}

// enterNew starts the second process. It leaves the calling goroutine on its
// thread, whose end the second process does not survive.
func enterNew(more uintptr) (*exec.Cmd, error) {
	runtime.LockOSThread()
	c := exec.Command("/proc/self/exe")
	c.Args = os.Args
	c.Env = append(os.Environ(), stageVar+"="+stageEntered)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | more,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // a signal from the terminal comes once, from follow
	}
	if more&syscall.CLONE_NEWUSER != 0 {
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if err := c.Start(); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return c, nil
}

// follow waits for the second process and returns the exit status to take over,
// which is 128 and its number for a signal, as shells have it.
func follow(child *exec.Cmd) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		child.Wait() // its error is ProcessState, read below
	}()
	for {
		select {
		case s := <-signals:
			child.Process.Signal(s) // fails only if the process has ended
		case <-ended:
			status := child.ProcessState.Sys().(syscall.WaitStatus)
			if status.Signaled() {
				return 128 + int(status.Signal())
			}
			return status.ExitStatus()
		}
	}
}

// furnish sets up the namespaces that the process was started in. Mounts are made
// private first: a shared one would show the new /run to the whole machine.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := os.MkdirAll("/run", 0o755); err != nil { // the small VM that tests may run in has none
		return fmt.Errorf("make /run: %w", err)
	}
	if err := unix.Mount("testbed", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
}
