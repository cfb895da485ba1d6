package lab

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	// rootVar has the test binary become the program in a root file system, and
	// manifestsVar names the folder that it sees there.
	rootVar      = "SLUICE_TEST_ROOT"
	manifestsVar = "SLUICE_TEST_MANIFESTS"
)

// enter makes this process what a container runtime makes of a pod of
// deploy/base/daemonset.yaml, in the network namespace that it is in already: the
// root file system and /proc/sys cannot be written, what is mounted is mounted, and
// there are no capabilities but those asked for. It ends in the program.
func enter(root string) error {
	runtime.LockOSThread()
	manifests := os.Getenv(manifestsVar)
	mount := func(from, to string, flags uintptr) error {
		if err := unix.Mount(from, to, "", flags, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", from, to, err)
		}
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	const readOnly = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY
	for _, m := range []struct {
		from, to string
		flags    uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{root, root, unix.MS_BIND},
		{"/proc", root + "/proc", unix.MS_BIND | unix.MS_REC},
		{root + "/proc/sys", root + "/proc/sys", unix.MS_BIND},
		{"", root + "/proc/sys", readOnly},
		{"/dev/null", root + "/dev/null", unix.MS_BIND},
		{root + ".lock", root + "/run/xtables.lock", unix.MS_BIND},
		{manifests, root + manifests, unix.MS_BIND},
		{"", root, readOnly},
	} {
		if err := mount(m.from, m.to, m.flags); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	wanted := map[uintptr]bool{}
	for _, c := range Capabilities {
		wanted[c] = true
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if !wanted[c] {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", c, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("allow no escalation: %w", err)
	}
	const program = "/usr/local/bin/sluice"
	return fmt.Errorf("start %s: %w", program, unix.Exec(program, append([]string{program}, os.Args[1:]...),
		[]string{"PATH=" + os.Getenv("PATH")}))
}

// Capabilities are those of deploy/base/daemonset.yaml.
var Capabilities = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_RESOURCE}
