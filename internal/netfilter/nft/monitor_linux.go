package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Monitor notices transactions of nf_tables by other programs, in the network namespace of
// the thread that called OpenMonitor.
type Monitor struct{ file *os.File }

// nfnlgrpNFTables is NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
const nfnlgrpNFTables = 7

// OpenMonitor subscribes to the notifications of nf_tables. Of these the kernel passes on only
// those that end a transaction.
func OpenMonitor() (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	m := &Monitor{os.NewFile(uintptr(fd), "nf_tables monitor")}
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

// Run calls changed after each transaction of another program until the context ends. It closes
// the monitor.
func (m *Monitor) Run(ctx context.Context, changed func()) error {
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
