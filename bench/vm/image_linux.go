package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// image is what all machines begin with, in the user's cache folder: the kernel, and
// a root file system of modules and programs. Files are replaced by renaming, so that
// machines may begin while it is prepared anew.
type image struct{ dir string }

func (i image) kernel() string { return filepath.Join(i.dir, "vmlinuz") }
func (i image) root() string   { return filepath.Join(i.dir, "root.cpio") }
func (i image) source() string { return filepath.Join(i.dir, "package") } // names what kernel and modules are from
func (i image) accel() string  { return filepath.Join(i.dir, "accelerator") }

// unpacked is the kernel's package, with its modules.
func (i image) unpacked() string { return filepath.Join(i.dir, "kernel") }

func openImage() (image, error) {
	if runtime.GOARCH != "amd64" {
		return image{}, fmt.Errorf("no machine is described for %s yet", runtime.GOARCH)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return image{}, err
	}
	i := image{filepath.Join(cache, "sluice-vm")}
	return i, os.MkdirAll(i.dir, 0o755)
}

// complete reports whether a machine can begin.
func (i image) complete() bool {
	for _, f := range []string{i.kernel(), i.root(), i.accel()} {
		if _, err := os.Stat(f); err != nil {
			return false
		}
	}
	return true
}

func (i image) accelerator() string {
	b, err := os.ReadFile(i.accel())
	if err != nil {
		return "tcg"
	}
	return strings.TrimSpace(string(b))
}

// programs are what tests of ours call, and what the kernel itself does.
var programs = []string{
	"sh", "cat", "cp", "env", "grep", "ls", "mkdir", "rm", "sed", "sleep", "tail", "true", "uname", "unshare",
	"ip", "tc", "ss", "sysctl", "dmesg", "kill", "prlimit", "setpriv", "modprobe", "lsmod",
	"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore",
	"iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft", "nft",
	"iptables-legacy-save", "ip6tables-legacy-save", "iptables-legacy-restore", "ip6tables-legacy-restore",
	"iptables-nft-save", "ip6tables-nft-save", "iptables-nft-restore", "ip6tables-nft-restore",
	"ipset", "ipvsadm", "sctp_test", "conntrack", "ethtool", "nc", "ps",
}

// optional are those whose absence is no error: shells have them built in, or no
// test needs them.
var optional = []string{"kill", "nft", "ethtool", "nc", "ps", "prlimit", "tc"}

// modules are folders and files below a kernel's own folder of modules.
var modules = []string{
	"net", "lib", "crypto", "arch/x86/crypto", "drivers/net/dummy.ko", "drivers/net/veth.ko",
	"drivers/net/ipvlan", "drivers/net/macvlan.ko", "drivers/net/tun.ko",
}

// prepare downloads the kernel if there is a newer one, and builds the root file
// system.
func (i image) prepare(ctx context.Context, m machine) error {
	const limit = 10 * time.Minute // for a slow mirror
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// One at a time: go test runs several binaries at once.
	lock, err := os.OpenFile(filepath.Join(i.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	tmp, err := os.MkdirTemp(i.dir, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	modulesOf, err := i.fetch(ctx, tmp)
	if err != nil {
		return err
	}
	if err := buildRoot(filepath.Join(tmp, "root.cpio"), modulesOf); err != nil {
		return fmt.Errorf("build the root file system: %w", err)
	}
	if err := os.Rename(filepath.Join(tmp, "root.cpio"), i.root()); err != nil {
		return err
	}
	return i.chooseAccelerator(ctx, m)
}

// fetch has the newest kernel in the image and returns the folder below which its
// modules are, as lib/modules/VERSION.
func (i image) fetch(ctx context.Context, tmp string) (string, error) {
	unpacked := i.unpacked()
	newest, err := newestKernel(ctx)
	if err != nil {
		if _, old := os.Stat(i.source()); old == nil {
			return unpacked, nil // what we have will do where no package can be asked for
		}
		return "", err
	}
	if have, err := os.ReadFile(i.source()); err == nil && string(have) == newest {
		return unpacked, nil
	}
	fmt.Fprintln(os.Stderr, "vm: downloading", newest)
	if err := command(ctx, tmp, "apt-get", "-qq", "download", newest); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get left %d packages, want 1 (%v)", len(debs), err)
	}
	fresh := filepath.Join(tmp, "kernel")
	if err := command(ctx, tmp, "dpkg-deb", "-x", debs[0], fresh); err != nil {
		return "", err
	}
	kernels, err := filepath.Glob(filepath.Join(fresh, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return "", fmt.Errorf("%s has %d kernels, want 1 (%v)", newest, len(kernels), err)
	}
	version := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	if err := command(ctx, tmp, "depmod", "-b", fresh, version); err != nil {
		return "", err
	}
	if err := os.Rename(kernels[0], i.kernel()); err != nil {
		return "", err
	}
	if err := os.RemoveAll(unpacked); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, unpacked); err != nil {
		return "", err
	}
	return unpacked, os.WriteFile(i.source(), []byte(newest), 0o644)
}

// newestKernel returns the package and version of the kernel that apt would
// install, as NAME=VERSION.
func newestKernel(ctx context.Context) (string, error) {
	const meta = "linux-image-cloud-amd64"
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", meta).Output()
	if err != nil || len(out) == 0 {
		// The lists are absent.
		if err := command(ctx, "/", "apt-get", "-qq", "update"); err != nil {
			return "", err
		}
		if out, err = exec.CommandContext(ctx, "apt-cache", "depends", meta).Output(); err != nil {
			return "", fmt.Errorf("look for package %s: %w", meta, err)
		}
	}
	for line := range strings.Lines(string(out)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-")
		if !ok {
			continue
		}
		name = "linux-image-" + name
		policy, err := exec.CommandContext(ctx, "apt-cache", "policy", name).Output()
		if err != nil {
			return "", fmt.Errorf("look for package %s: %w", name, err)
		}
		for line := range strings.Lines(string(policy)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Candidate: "); ok {
				return name + "=" + v, nil
			}
		}
	}
	return "", fmt.Errorf("package %s depends on no kernel", meta)
}

// buildRoot writes the archive of the root file system.
func buildRoot(to, kernel string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "root", "etc", "usr/bin", "usr/sbin", "usr/lib",
		"usr/lib64", "t"} {
		a.folder(d)
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		a.link(d, "usr/"+d) // as Debian has it
	}
	for _, p := range programs {
		if err := a.program(p); err != nil && !(errors.Is(err, exec.ErrNotFound) && slices.Contains(optional, p)) {
			return err
		}
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return err
	}
	for _, e := range extensions {
		a.file(e, e)
	}
	for _, e := range []string{"/etc/protocols", "/etc/services"} { // ipvsadm and iptables read them
		if _, err := os.Stat(e); err == nil {
			a.file(e, e)
		}
	}
	// Without this, loading the module makes a dummy0 that no test asked for.
	a.text("etc/modprobe.d/dummy.conf", "options dummy numdummies=0\n")
	a.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	a.text("etc/group", "root:x:0:\n")
	a.text("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
	if err := a.modules(kernel); err != nil {
		return err
	}
	if err := a.close(); err != nil {
		return err
	}
	return f.Close()
}

// modules copies the modules that tests need, with the tables by which modprobe
// finds them; what those name besides is not there to be found.
func (a *archive) modules(kernel string) error {
	versions, err := filepath.Glob(filepath.Join(kernel, "lib/modules/*"))
	if err != nil || len(versions) != 1 {
		return fmt.Errorf("%s has modules of %d kernels, want 1 (%v)", kernel, len(versions), err)
	}
	to := filepath.Join("usr/lib/modules", filepath.Base(versions[0]))
	for _, m := range modules {
		from := filepath.Join(versions[0], "kernel", m)
		if info, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
			continue // built in, by this kernel
		} else if err == nil && info.IsDir() {
			a.tree(filepath.Join(to, "kernel", m), from)
		} else {
			a.file(filepath.Join(to, "kernel", m), from)
		}
	}
	tables, err := filepath.Glob(filepath.Join(versions[0], "modules.*"))
	for _, f := range tables {
		a.file(filepath.Join(to, filepath.Base(f)), f)
	}
	return err
}

// program copies a program, under all names on the way to its file, and the
// libraries it is linked with.
func (a *archive) program(name string) error {
	path, err := findProgram(name)
	if err != nil {
		return err
	}
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	a.file(inUsr(file), file)
	a.link("usr/bin/"+name, file)
	a.link("usr/sbin/"+name, file) // the kernel itself calls /sbin/modprobe
	out, err := exec.Command("ldd", file).Output()
	if err != nil {
		return a.err // a script, or statically linked
	}
	for _, w := range strings.Fields(string(out)) {
		if strings.HasPrefix(w, "/") {
			a.file(inUsr(w), w)
		}
	}
	return a.err
}

// inUsr returns where a file is that may have been named by one of the links in the
// root folder.
func inUsr(path string) string {
	for _, d := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(path, d) {
			return "/usr" + path
		}
	}
	return path
}

func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, d := range []string{"/usr/sbin/", "/sbin/"} { // not in every user's PATH
		if err != nil {
			path, err = exec.LookPath(d + name)
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
	}
	return path, nil
}

// command runs a program of this machine that is to say nothing unless it fails.
func command(ctx context.Context, dir, name string, args ...string) error {
	path, err := findProgram(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", strings.Join(cmd.Args, " "), err,
			strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}
