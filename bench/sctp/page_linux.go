package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// page writes what is known of the machine, and then the tables of this kernel and,
// if there is a program to run one, of that in a virtual machine.
func page(w io.Writer) error {
	busy := busyShare()
	fmt.Fprintf(w, "# What a message over SCTP costs\n\n%s, %d processors, Linux %s. Before it began the machine was %.0f %% busy with other work",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), release(), busy*100)
	if busy > maxBusy {
		fmt.Fprint(w, ": **these figures are rough, and not to be compared with others**")
	}
	fmt.Fprintf(w, ".\n\n```\n%s\n```\n\nProcessor time per message: of the whole machine, clients and servers included, and of Sluice's process. What counts are "+
		"the differences to the route, within one table. Medians of interleaved rounds, in µs.\n\n", strings.Join(append([]string{"go run ./bench/sctp"}, os.Args[1:]...), " "))
	if err := measureAll(w); err != nil || *vm == "" {
		return err
	}
	fmt.Fprintf(w, "\n")
	return inMachine(w)
}

// maxBusy is the share of processor time from which on a machine is not idle.
const maxBusy = 0.05

// busyShare returns for which share of a second the processors were not idle.
func busyShare() float64 {
	before, start := machineTime(), time.Now()
	time.Sleep(time.Second) // what is measured is this second
	return (machineTime() - before).Seconds() / time.Since(start).Seconds() / float64(runtime.NumCPU())
}

// release returns the number of the kernel's release.
func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	number, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	return number
}

// inMachine runs this program in the machine of bench/vm, which has a kernel with SCTP and
// ipvs, with a fifth of the messages since it may be interpreted, which takes its time.
func inMachine(w io.Writer) error {
	dir, err := os.MkdirTemp("", "sluice-sctp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := os.ReadFile(*sluice)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "testdata"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "testdata", "sluice"), program, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runner, err := filepath.Abs(*vm)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), runner, "-grace", "30m", self, "-sluice", "testdata/sluice",
		"-messages", fmt.Sprint(max(*messages/5, 1)), "-rounds", fmt.Sprint(*rounds))
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("measure in the virtual machine: %w: %s", err, out.Bytes())
	}
	_, err = w.Write(bytes.ReplaceAll(out.Bytes(), []byte("\r\n"), []byte("\n")))
	return err
}
