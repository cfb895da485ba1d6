package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Monitor notices transactions of nf_tables by other programs, in the network namespace of
// the thread that called OpenMonitor.
type Monitor struct {
	file    *os.File
	changed func() // of Run
}

// running are the monitors in Run, which do not listen to large transactions of this process.
var running struct {
	sync.Mutex
	all map[*Monitor]struct{}
}

// nfnlgrpNFTables is NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
const nfnlgrpNFTables = 7

// OpenMonitor subscribes to the notifications of nf_tables. Of these the kernel passes on only
// those that end a transaction.
func OpenMonitor() (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	m := &Monitor{file: os.NewFile(uintptr(fd), "nf_tables monitor")}
	// A packet filter reads in network order (linux/filter.h), and the type is in host order.
	const newGen = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	kind := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, newGen))
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4}, // nlmsg_type
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(kind)},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	for _, err := range []error{
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, nfnlgrpNFTables),
	} {
		if err != nil {
			_ = m.file.Close()
			return nil, fmt.Errorf("subscribe to nf_tables: %w", err)
		}
	}
	return m, nil
}

// subscribe joins the group of nf_tables' notifications, by NETLINK_ADD_MEMBERSHIP, or leaves it.
func (m *Monitor) subscribe(option int) error {
	raw, err := m.file.SyscallConn()
	if err != nil {
		return err
	}
	err2 := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, nfnlgrpNFTables)
	})
	return errors.Join(err, err2)
}

// unheard does a transaction while no monitor of this process listens: as long as any does, the kernel makes a message
// of a page for each element, rule and chain, which takes it as long as all else. What other programs write meanwhile
// is noticed by the generation.
func unheard(transact func() error) (made uint32, err error) {
	running.Lock()
	defer running.Unlock()
	since := nfnl.Generation()
	for m := range running.all {
		_ = m.subscribe(unix.NETLINK_DROP_MEMBERSHIP) // else it hears this
	}
	made, err = nfnl.Commit(transact)
	for m := range running.all {
		if m.subscribe(unix.NETLINK_ADD_MEMBERSHIP) != nil {
			_ = m.file.Close() // so that Run returns: it would never hear anything again
		}
	}
	if _, alone := nfnl.Alone(since); !alone {
		for m := range running.all {
			m.changed()
		}
	}
	return made, err
}

// Run calls changed after each transaction of another program until the context ends, and after some at once. changed
// is also called by goroutines that write tables, and must not block. Run closes the monitor.
func (m *Monitor) Run(ctx context.Context, changed func()) error {
	m.changed = changed
	running.Lock()
	if running.all == nil {
		running.all = make(map[*Monitor]struct{})
	}
	running.all[m] = struct{}{}
	running.Unlock()
	defer func() {
		running.Lock()
		defer running.Unlock()
		delete(running.all, m)
	}()
	stop := context.AfterFunc(ctx, func() { _ = m.file.Close() })
	defer stop()
	defer m.file.Close()
	// By its name: the number is that of a thread, and as the first PID namespace has it (nf_tables_fill_gen_info).
	self, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return fmt.Errorf("read this program's name: %w", err)
	}
	buffer, name := make([]byte, 1<<16), strings.TrimSpace(string(self))
	for {
		n, err := m.file.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.ENOBUFS): // there were more than it holds
			changed()
			continue
		case err != nil:
			return fmt.Errorf("read notifications of nf_tables: %w", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return fmt.Errorf("read notifications of nf_tables: %w", err)
		}
		for _, msg := range msgs {
			if len(msg.Data) < nl.SizeofNfgenmsg {
				continue
			}
			if nfnl.Parse(msg.Data[nl.SizeofNfgenmsg:]).Find(unix.NFTA_GEN_PROC_NAME).String() != name {
				changed()
				break
			}
		}
	}
}
