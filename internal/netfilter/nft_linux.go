package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// nfAccept is NF_ACCEPT of linux/netfilter.h, which x/sys lacks.
const nfAccept = 1

// nftChain is a chain of an nft table.
type nftChain struct {
	Name string
	Base bool // hooked and with the policy to accept, as iptables makes it
}

// nftList calls add with the items of a list of nf_tables, which is empty if the kernel has
// none, and begin before, each time it starts anew.
func nftList(what string, command int, family uint8, filter []byte, begin func(), add func(nfnl.Value)) error {
	err := nfnl.Request(unix.NFNL_SUBSYS_NFTABLES, command, unix.NLM_F_DUMP, family, filter, begin, add)
	if err != nil && !nfnl.NoSubsystem(err) && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("list nft %s: %w", what, err)
	}
	return nil
}

// nftTables returns the names of nft tables of a family.
func nftTables(family uint8) (names []string, err error) {
	err = nftList("tables", unix.NFT_MSG_GETTABLE, family, nil, func() { names = nil }, func(m nfnl.Value) {
		names = append(names, m.Find(unix.NFTA_TABLE_NAME).String())
	})
	return names, err
}

// nftChains returns the chains of an nft table, none if there is no such table.
func nftChains(family uint8, table string) (chains []nftChain, err error) {
	err = nftList("chains", unix.NFT_MSG_GETCHAIN, family, nil, func() { chains = nil }, func(m nfnl.Value) {
		if m.Find(unix.NFTA_CHAIN_TABLE).String() == table {
			accepts := m.Find(unix.NFTA_CHAIN_POLICY).Uint() == nfAccept
			base := accepts && m.Find(unix.NFTA_CHAIN_HOOK).Bytes != nil
			chains = append(chains, nftChain{m.Find(unix.NFTA_CHAIN_NAME).String(), base})
		}
	})
	return chains, err
}

// nftHas returns the tables of a layout in which nf_tables has a chain for which is is true.
func (l *Layout) nftHas(is func(table, chain string) bool) (names []string, err error) {
	for _, t := range l.Tables {
		chains, err := nftChains(nfnl.Family(l.IPv6), t.Name)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(chains, func(c nftChain) bool { return is(t.Name, c.Name) }) {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// removeMarkedTable removes a table that carries the mark of a prefix if it is empty, and
// the mark alone if other programs have something in it. While there are other chains of
// the prefix the mark stays, for the last of them. iptables cannot remove a table.
func removeMarkedTable(family uint8, table, prefix string) error {
	mark := MarkChain(prefix)
	chains, err := nftChains(family, table)
	if err != nil {
		return err
	}
	marked, empty := false, true
	var doomed []string
	for _, c := range chains {
		if c.Name == mark {
			marked = true
		} else if strings.HasPrefix(c.Name, prefix) {
			return nil
		} else if !c.Base {
			empty = false
		}
		doomed = append(doomed, c.Name)
	}
	if !marked {
		return nil
	}
	if empty {
		err := nftDelete(family, table, doomed, true)
		// EBUSY: rules, sets or other objects are in it, or came meanwhile.
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
	}
	return nftDelete(family, table, []string{mark}, false)
}

// nftDelete deletes chains, and their table, in one transaction. NLM_F_NONREC
// makes the kernel refuse all of it with EBUSY if one is not empty, so no
// program loses a rule that it adds between our looking and our deleting.
func nftDelete(family uint8, table string, chains []string, andTable bool) error {
	var requests [][]byte
	for _, c := range chains {
		attrs := nfnl.AttrString(nfnl.AttrString(nil, unix.NFTA_CHAIN_TABLE, table), unix.NFTA_CHAIN_NAME, c)
		requests = append(requests, nftRequest(unix.NFT_MSG_DELCHAIN, unix.NLM_F_NONREC, family, attrs))
	}
	if andTable {
		attrs := nfnl.AttrString(nil, unix.NFTA_TABLE_NAME, table)
		requests = append(requests, nftRequest(unix.NFT_MSG_DELTABLE, unix.NLM_F_NONREC, family, attrs))
	}
	if err := nftTransaction(requests); err != nil {
		return fmt.Errorf("delete nft %s of table %s: %w", strings.Join(chains, ", "), table, err)
	}
	return nil
}

// nftRequest returns a request to nf_tables.
func nftRequest(command, flags int, family uint8, attrs []byte) []byte {
	header := &nl.Nfgenmsg{NfgenFamily: family}
	return nftMessage(unix.NFNL_SUBSYS_NFTABLES<<8|command, flags, header, attrs)
}

func nftMessage(kind, flags int, header *nl.Nfgenmsg, attrs []byte) []byte {
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddData(header)
	req.AddRawData(attrs)
	return req.Serialize()
}

// nftTransaction sends requests of which nf_tables does all or none.
func nftTransaction(requests [][]byte) error {
	last := requests[len(requests)-1] // struct nlmsghdr: length, type, flags, sequence number
	binary.NativeEndian.PutUint16(last[6:], binary.NativeEndian.Uint16(last[6:])|unix.NLM_F_ACK)
	// The subsystem is in network order (nfnetlink.h, struct nfgenmsg).
	all := &nl.Nfgenmsg{ResId: binary.NativeEndian.Uint16([]byte{0, unix.NFNL_SUBSYS_NFTABLES})}
	batch := nftMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, all, nil)
	for _, r := range requests {
		batch = append(batch, r...)
	}
	batch = append(batch, nftMessage(unix.NFNL_MSG_BATCH_END, 0, all, nil)...)
	_, err := nfnl.Commit(func() error {
		_, err := nfnl.Transact(batch, binary.NativeEndian.Uint32(last[8:]))
		return err
	})
	return err
}
