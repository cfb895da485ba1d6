package testbed

import (
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Container is what a container runtime makes of a pod of deploy/base/daemonset.yaml: its root
// file system and /proc/sys cannot be written, what is mounted is mounted, and there are no
// capabilities but those asked for.
type Container struct {
	Root, Program string    // a folder, and a path in it
	Volume        string    // a folder of the host, at the same path
	Capabilities  []uintptr // as unix.CAP_NET_ADMIN
}

// Exec turns this process, in the network namespace that it is in already, into the program in
// the container. It does not return if it succeeds.
func (c Container) Exec(args, env []string) error {
	runtime.LockOSThread()
	mount := func(from, to string, flags uintptr) error {
		if err := unix.Mount(from, to, from, flags, ""); err != nil { // binding ignores the kind
			return fmt.Errorf("mount %s at %s: %w", from, to, err)
		}
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	proc, procFlags := "/proc", uintptr(unix.MS_BIND|unix.MS_REC)
	if os.Getpid() == 1 { // of processes of its own
		proc, procFlags = "proc", 0
	}
	const readOnly = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY
	for _, m := range []struct {
		from, to string
		flags    uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{c.Root, c.Root, unix.MS_BIND},
		{proc, c.Root + "/proc", procFlags},
		{c.Root + "/proc/sys", c.Root + "/proc/sys", unix.MS_BIND},
		{"", c.Root + "/proc/sys", readOnly},
		{"/dev/null", c.Root + "/dev/null", unix.MS_BIND},
		{c.Root + ".lock", c.Root + "/run/xtables.lock", unix.MS_BIND},
		{c.Volume, c.Root + c.Volume, unix.MS_BIND},
		{"", c.Root, readOnly},
	} {
		if err := mount(m.from, m.to, m.flags); err != nil {
			return err
		}
	}
	if err := unix.Chroot(c.Root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	for one := uintptr(0); one <= unix.CAP_LAST_CAP; one++ {
		if !slices.Contains(c.Capabilities, one) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, one, 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", one, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("allow no escalation: %w", err)
	}
	return fmt.Errorf("start %s: %w", c.Program, unix.Exec(c.Program, append([]string{c.Program}, args...), env))
}
