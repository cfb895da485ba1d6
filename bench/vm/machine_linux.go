package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// insideVar is the environment variable by which a program knows that it runs in the
// machine.
const insideVar = "SLUICE_VM"

const (
	// beginLine is the line on the console that says that the binary begins.
	beginLine = "sluice-vm: the binary begins"
	// statusLine begins the line on the console that carries the binary's exit status.
	statusLine = "sluice-vm: exit status "
	// bootTime bounds how long a machine takes until then, interpreted and among others.
	bootTime = 10 * time.Minute
)

// machine is one virtual machine, for one run of one binary.
type machine struct {
	memory      int    // MiB
	cpus        int    // on KVM; there is one on a clock of its own
	accelerator string // kvm or tcg
	root        string // an archive to boot in place of the image's root file system; empty: none
	grace       time.Duration
	out         io.Writer // gets what the binary writes
}

// job is what the machine is to do; it travels as a file.
type job struct {
	Args []string
	Env  []string
}

// jobFile is where the machine finds its job, and binary what it runs.
const (
	jobFile = "t/.job"
	binary  = "t/test"
)

// run runs argv in a machine and returns its exit status, or hostFailed and the
// reason.
func (m machine) run(ctx context.Context, img image, argv []string) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tmp, err := os.MkdirTemp("", "sluice-vm-")
	if err != nil {
		return hostFailed, err
	}
	defer os.RemoveAll(tmp)
	initrd, console := filepath.Join(tmp, "initrd"), filepath.Join(tmp, "console")
	if err := m.pack(initrd, img, argv); err != nil {
		return hostFailed, fmt.Errorf("pack %s: %w", initrd, err)
	}
	qemu, err := m.command(ctx, img, initrd, console)
	if err != nil {
		return hostFailed, err
	}
	var complaints bytes.Buffer
	qemu.Stdout, qemu.Stderr = m.out, &complaints
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { bound(console, timeLimit(argv)+m.grace, ended, cancel) })
	err = qemu.Run()
	close(ended)
	watching.Wait()
	said, _ := os.ReadFile(console) // absent if QEMU could not begin
	if i := bytes.LastIndex(said, []byte(statusLine)); i >= 0 {
		word, _, _ := strings.Cut(string(said[i+len(statusLine):]), "\n")
		status, err := strconv.Atoi(strings.TrimSpace(word))
		if err == nil && status == hostFailed {
			return status, fmt.Errorf("the machine failed, not its program; last on its console:\n%s", tail(said))
		}
		if err == nil {
			return status, nil
		}
	}
	why := "the machine ended before its program did"
	if cause := context.Cause(ctx); errors.Is(cause, errTooLong) {
		why = cause.Error()
	} else if cause != nil {
		why = "interrupted"
	}
	return hostFailed, fmt.Errorf("%s (%v)\n%s\nlast on its console:\n%s", why, err, complaints.Bytes(), tail(said))
}

var errTooLong = errors.New("the machine did not end")

// bound ends a machine whose binary runs for so long, or does not run after bootTime. How long a machine boots says
// how busy the host is. A file has no event that QEMU has written to it, so this looks.
func bound(console string, limit time.Duration, ended <-chan struct{}, end context.CancelCauseFunc) {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	over := time.NewTimer(bootTime)
	defer over.Stop()
	for begun := false; ; {
		select {
		case <-ended:
			return
		case <-over.C:
			if begun {
				end(fmt.Errorf("%w within %v", errTooLong, limit))
			} else {
				end(fmt.Errorf("%w within %v, nor has its binary begun", errTooLong, bootTime))
			}
			return
		case <-look.C:
		}
		if said, _ := os.ReadFile(console); bytes.Contains(said, []byte(beginLine)) {
			begun = true
			over.Reset(limit)
			look.Stop()
		}
	}
}

// command is QEMU with the machine that Debian's cloud kernel boots fastest on: no
// firmware screen, no disk, no network. The first serial line is the console,
// the second the binary's output. Interpreted, it has a clock of its own (doc.go), and is no processor that copies fast
// by single bytes (ERMS): for the kernel, the C library and Go's runtime would do so, and each byte is interpreted.
func (m machine) command(ctx context.Context, img image, initrd, console string) (*exec.Cmd, error) {
	path, err := findProgram("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	accelerator, cpu, cpus, tsc := m.accelerator, "max", m.cpus, "unstable"
	var clock []string
	if accelerator == "tcg" {
		accelerator, cpu, cpus, tsc = "tcg,thread=single", "max,-erms", 1, "reliable"
		clock = []string{"-icount", "shift=0,sleep=off"}
	}
	cmd := exec.CommandContext(ctx, path, "-accel", accelerator, "-M", "pc", "-cpu", cpu,
		"-m", strconv.Itoa(m.memory), "-smp", strconv.Itoa(cpus),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:"+console, "-serial", "stdio",
		"-kernel", img.kernel(), "-initrd", initrd,
		// A panic ends the machine. A host that is busy lets too few ticks through for the
		// kernel's test of the timer.
		"-append", "console=ttyS0 loglevel=4 panic=-1 no_timer_check mitigations=off tsc="+tsc)
	cmd.Args = append(cmd.Args, clock...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	return cmd, nil
}

// pack writes the root file system, and after it the binary and all that is of this
// run, or the kernel's modules.
func (m machine) pack(to string, img image, argv []string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.Open(cmp.Or(m.root, img.root()))
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := io.Copy(f, root); err != nil {
		return err
	}
	if m.root != "" {
		a := newArchive(f)
		if err := a.modules(img.unpacked()); err != nil {
			return err
		}
		return a.close()
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	work, err := json.Marshal(job{Args: argv, Env: environment()})
	if err != nil {
		return err
	}
	a := newArchive(f)
	a.file("init", self)
	a.file(binary, argv[0])
	a.text(jobFile, string(work))
	if _, err := os.Stat("testdata"); err == nil {
		a.tree("t/testdata", "testdata")
	}
	if err := a.close(); err != nil {
		return err
	}
	return f.Close()
}

// environment is what the binary gets. There is memory to spare, and a collector of garbage is slow where it is
// interpreted.
func environment() []string {
	env := []string{"PATH=/usr/sbin:/usr/bin", "HOME=/root", "TMPDIR=/tmp", "GOGC=400", insideVar + "=1"}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "SLUICE_") || strings.HasPrefix(e, "GODEBUG=") || strings.HasPrefix(e, "GOTRACEBACK=") {
			env = append(env, e)
		}
	}
	return env
}

// timeLimit is how long the binary gives itself. The machine gets less than a minute
// more, with its boot if the host is not busy: after that the go command loses patience, and nothing would say why.
func timeLimit(argv []string) time.Duration {
	for _, a := range argv {
		if v, ok := strings.CutPrefix(strings.TrimLeft(a, "-"), "test.timeout="); ok {
			if d, err := time.ParseDuration(v); err == nil && d > 0 {
				return d
			}
		}
	}
	return 10 * time.Minute // a test's own default
}

// tail returns the end of what a console said.
func tail(b []byte) []byte {
	const most = 16 << 10
	return b[max(0, len(b)-most):]
}

// chooseAccelerator tries whether a machine runs on KVM. A device that is there may
// not work: in a machine that is virtual itself, QEMU aborts or stands still.
func (i image) chooseAccelerator(ctx context.Context, m machine) error {
	if _, err := os.Stat(i.accel()); err == nil {
		return nil // tried before
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	choice := "tcg"
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		f.Close()
		m.accelerator, m.grace, m.out = "kvm", 20*time.Second, io.Discard
		trial := []string{self, "-help", "-test.timeout=1ns"} // ends at once, with status 0
		if status, err := m.run(ctx, i, trial); err == nil && status == 0 {
			choice = "kvm"
		}
	}
	return os.WriteFile(i.accel(), []byte(choice+"\n"), 0o644)
}
