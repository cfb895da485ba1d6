package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// hostFailed is the exit status of a failure that is not the binary's.
const hostFailed = 99

func init() {
	// QEMU is to die with the thread that started it, which therefore must be one
	// that lives as long as we do.
	runtime.LockOSThread()
}

func main() {
	if os.Getpid() == 1 {
		guest()
		return
	}
	m := machine{out: os.Stdout}
	prepareOnly := flag.Bool("prepare", false, "download the kernel and build the root file system anew, then end")
	flag.StringVar(&m.root, "root", "", "boot this `ARCHIVE` (cpio) of a whole system, which runs its own /init "+
		"and says on its console when it begins and how it ended, as doc.go says")
	flag.IntVar(&m.memory, "memory", 1536, "memory of the machine, in MiB")
	flag.IntVar(&m.cpus, "cpus", 2, "processors of the machine, on KVM")
	flag.DurationVar(&m.grace, "grace", 40*time.Second, "how much longer than the binary's own -test.timeout the "+
		"machine may run from when the binary begins")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()

	status, err := start(ctx, m, *prepareOnly, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	} else if status != 0 {
		fmt.Fprintln(os.Stderr, "vm: exit status", status)
	}
	stop()
	os.Exit(status)
}

func start(ctx context.Context, m machine, prepareOnly bool, argv []string) (int, error) {
	img, err := openImage()
	if err != nil {
		return hostFailed, err
	}
	if prepareOnly || !img.complete() {
		if err := img.prepare(ctx, m); err != nil {
			return hostFailed, fmt.Errorf("prepare %s: %w", img.dir, err)
		}
	}
	if prepareOnly {
		return 0, nil
	}
	if len(argv) == 0 && m.root == "" {
		return hostFailed, fmt.Errorf("name the binary to run")
	}
	m.accelerator = img.accelerator()
	return m.run(ctx, img, argv)
}
