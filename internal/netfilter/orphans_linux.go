package netfilter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// checkOrphans returns an error if a family has chains whose names begin with the prefix
// of a layout and that no installed program can show or remove, so that they would stay
// unnoticed. It asks the kernel itself.
func checkOrphans(l Layout) error {
	family := Program(l.IPv6)
	var errs []error
	for program, tables := range map[string]func(*Layout) ([]string, error){
		family + "-nft": (*Layout).nftOrphans, family + "-legacy": (*Layout).legacyOrphans,
	} {
		if canRun(program, l.IPv6) {
			continue
		}
		names, err := tables(&l)
		if err == nil && len(names) > 0 {
			err = fmt.Errorf("chains %s* stay in table %s, since %s is not installed: install iptables 1.8 or later "+
				"with it, and clean up again", l.Prefix, strings.Join(names, ", "), program)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// canRun reports whether a backend's program is among those that are asked, or the
// one that says nothing of its backend.
func canRun(program string, ipv6 bool) bool {
	return slices.ContainsFunc(Backends(ipv6), func(name string) bool {
		_, err := exec.LookPath(name + "-save")
		return err == nil && strings.HasPrefix(program, name)
	})
}

// nftOrphans returns the tables of nf_tables with chains of the prefix. A mark is none.
func (l *Layout) nftOrphans() ([]string, error) {
	return l.nftHas(func(_, chain string) bool {
		return chain != MarkChain(l.Prefix) && strings.HasPrefix(chain, l.Prefix)
	})
}

// legacyOrphans returns the tables of the legacy backend with chains of the prefix. It
// looks only at tables that are there, since asking for one makes it.
func (l *Layout) legacyOrphans() ([]string, error) {
	list, domain, level := "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP
	if l.IPv6 {
		list, domain, level = "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6
	}
	there, err := os.ReadFile(list)
	if errors.Is(err, fs.ErrNotExist) { // the module is not there
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list legacy tables: %w", err)
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("look at legacy tables: %w", err)
	}
	defer unix.Close(fd)
	var names []string
	for _, t := range l.Tables {
		if !slices.Contains(strings.Fields(string(there)), t.Name) {
			continue
		}
		entries, err := legacyEntries(fd, level, t.Name)
		if err != nil {
			return nil, fmt.Errorf("look at legacy table %s: %w", t.Name, err)
		}
		if bytes.Contains(entries, []byte(l.Prefix)) { // the name of a chain stands where it begins
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// Of linux/netfilter_ipv4/ip_tables.h, and the same for IPv6.
const (
	getInfo     = 64 // IPT_SO_GET_INFO
	getEntries  = 65 // IPT_SO_GET_ENTRIES
	nameLen     = 32 // XT_TABLE_MAXNAMELEN
	infoLen     = 84 // struct ipt_getinfo, whose last field is the size of the entries
	entriesFrom = 40 // struct ipt_get_entries: name, size, padding
)

// legacyEntries returns all rules of a legacy table as the kernel has them.
func legacyEntries(fd, level int, table string) (entries []byte, err error) {
	for range nfnl.DumpTries {
		info := make([]byte, infoLen)
		copy(info[:nameLen-1], table)
		if err := Getsockopt(fd, level, getInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[infoLen-4:])
		entries = make([]byte, entriesFrom+size)
		copy(entries[:nameLen-1], table)
		binary.NativeEndian.PutUint32(entries[nameLen:], size)
		if err = Getsockopt(fd, level, getEntries, entries); !errors.Is(err, unix.EAGAIN) { // changed meanwhile
			break
		}
	}
	return entries, err
}

// Getsockopt reads an option that is as long as b. The functions of x/sys that could carry as
// much put it on the heap.
func Getsockopt(fd, level, option int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
