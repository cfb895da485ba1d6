package nft

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TestKernelAcceptsLengths: the kernel's log has no complaint about the length of an attribute in a rule that looks at
// both directions of conntrack.
func TestKernelAcceptsLengths(t *testing.T) {
	log, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skip("the kernel's log cannot be read: ", err)
	}
	defer log.Close()
	eachFamily(t, func(t *testing.T, x *Table) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		comm := fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid())
		was, _ := os.ReadFile(comm)
		name := fmt.Sprintf("nft-%d", unix.Gettid()) // the log has the name of the thread, which other tests have, too
		if err := os.WriteFile(comm, []byte(name), 0); err != nil {
			t.Skip(err)
		}
		defer func() { _ = os.WriteFile(comm, bytes.TrimSpace(was), 0) }()
		fd := int(log.Fd())
		if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
			t.Skip(err)
		}
		original := func(b *Builder, reg uint32) uint32 { // what the first packet of a connection had
			b.add(&expr.Ct{Register: reg, Key: expr.CtKeyDST})
			return b.words()
		}
		x.SetChain("lengths", nil, []Rule{NewRule(x.IPv6).In("services", original, L4Proto, conntrack(expr.CtKeyPROTODST)).
			Accept().Rule("")})
		write(t, x)
		line := make([]byte, 8192)
		for {
			n, err := unix.Read(fd, line)
			if err == unix.EPIPE {
				continue // overtaken by other messages
			} else if err != nil {
				break
			}
			if said := string(line[:n]); strings.Contains(said, "'"+name+"'") {
				t.Errorf("the kernel says %q", said)
			}
		}
	})
}
