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
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// checkOrphans returns an error if the legacy backend has chains of a family whose names begin with the prefix
// of a layout and that no installed program can show or remove, so that they would stay
// unnoticed. It asks the kernel itself.
func checkOrphans(l Layout) error {
	program := Program(l.IPv6) + "-legacy"
	if canRun(program, l.IPv6) {
		return nil
	}
	names, err := l.legacyOrphans()
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("chains %s* stay in table %s, since %s is not installed: install iptables 1.8 or later "+
			"with it, and clean up again", l.Prefix, strings.Join(names, ", "), program)
	}
	return err
}

// removeNFT removes chains from the nf_tables backend by netlink, and the rules of others' chains that lead to them, in
// one transaction: where its program is not installed nothing else could. It returns how many chains there were.
func (l *Layout) removeNFT(own func(table, chain string) bool) (n int, err error) {
	for range nfnl.DumpTries {
		rules, chains, err2 := l.removal(own)
		if n, err = len(chains), err2; err != nil || n == 0 {
			return 0, err
		}
		// What has changed meanwhile is looked at again: a rule that is gone, or one more that leads to a chain.
		err = nftTransaction(slices.Concat(rules, chains))
		if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EBUSY) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("delete chains %s* without %s-nft: %w", l.Prefix, Program(l.IPv6), err)
	}
	return n, nil
}

// removal returns the requests of removeNFT; none if there is no such chain. Rules go first, since they may lead from
// one chain to another.
func (l *Layout) removal(own func(table, chain string) bool) (rules, chains [][]byte, err error) {
	family := nfnl.Family(l.IPv6)
	for _, t := range l.Tables {
		list, err := nftChains(family, t.Name)
		if err != nil {
			return nil, nil, err
		}
		have, err := nftRules(family, Place{Table: t.Name})
		if err != nil {
			return nil, nil, err
		}
		for _, c := range list {
			rule := nfnl.AttrString(nfnl.AttrString(nil, unix.NFTA_RULE_TABLE, t.Name), unix.NFTA_RULE_CHAIN, c.Name)
			if own(t.Name, c.Name) {
				chain := nfnl.AttrString(nil, unix.NFTA_CHAIN_TABLE, t.Name)
				chain = nfnl.AttrString(chain, unix.NFTA_CHAIN_NAME, c.Name)
				rules = append(rules, nftRequest(unix.NFT_MSG_DELRULE, 0, family, rule))
				chains = append(chains, nftRequest(unix.NFT_MSG_DELCHAIN, unix.NLM_F_NONREC, family, chain))
				continue
			}
			for _, r := range have[c.Name] {
				if own(t.Name, r.Target) {
					one := nfnl.Attr(slices.Clone(rule), unix.NFTA_RULE_HANDLE, []byte(r.handle))
					rules = append(rules, nftRequest(unix.NFT_MSG_DELRULE, 0, family, one))
				}
			}
		}
	}
	return rules, chains, nil
}

// canRun reports whether a backend's program is among those that are asked, or the
// one that says nothing of its backend.
func canRun(program string, ipv6 bool) bool {
	return slices.ContainsFunc(Backends(ipv6), func(name string) bool {
		_, err := exec.LookPath(name + "-save")
		return err == nil && strings.HasPrefix(program, name)
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
