package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// batch is messages of which nf_tables does all or none.
type batch struct {
	name  string // of the table
	ipv6  bool
	bytes []byte
	start int    // of the message that is being written
	count uint32 // messages, and the sequence number of the last
	sets  uint32

	dormant bool // tables that it adds let no packets in

	generation uint32 // that it has made; 0: it is not known

	made    map[*set]bool // by this batch
	changes []change      // that it makes, for who keeps account of them
}

// change is elements of a set that come or go.
type change struct {
	set     *set
	list    []packed
	present bool
}

func (t *Table) batch() *batch {
	b := &batch{name: t.Name, ipv6: t.IPv6, made: make(map[*set]bool)}
	b.control(unix.NFNL_MSG_BATCH_BEGIN)
	return b
}

func (b *batch) empty() bool { return b.count == 1 }

// control appends what begins or ends the batch.
func (b *batch) control(kind int) {
	b.header(kind, 0)
	// The subsystem is in network order (nfnetlink.h, struct nfgenmsg).
	b.bytes = append(b.bytes, unix.AF_UNSPEC, nl.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
	b.end()
}

// begin appends the head of a message.
func (b *batch) begin(command, flags int) {
	b.header(unix.NFNL_SUBSYS_NFTABLES<<8|command, flags)
	b.bytes = append(b.bytes, nfnl.Family(b.ipv6), nl.NFNETLINK_V0, 0, 0)
}

func (b *batch) header(kind, flags int) {
	b.start = len(b.bytes)
	b.count++
	b.bytes = append(b.bytes, make([]byte, 4)...)
	b.bytes = binary.NativeEndian.AppendUint16(b.bytes, uint16(kind))
	b.bytes = binary.NativeEndian.AppendUint16(b.bytes, uint16(unix.NLM_F_REQUEST|flags))
	b.bytes = binary.NativeEndian.AppendUint32(b.bytes, b.count)
	b.bytes = append(b.bytes, make([]byte, 4)...)
}

// end fills in the length of the message that was begun.
func (b *batch) end() { binary.NativeEndian.PutUint32(b.bytes[b.start:], uint32(len(b.bytes)-b.start)) }

func (b *batch) attr(kind int, value []byte) { b.bytes = nfnl.Attr(b.bytes, kind, value) }

func (b *batch) str(kind int, value string) { b.bytes = nfnl.AttrString(b.bytes, kind, value) }

func (b *batch) table(command int) {
	b.begin(command, unix.NLM_F_CREATE)
	b.str(unix.NFTA_TABLE_NAME, b.name)
	if b.dormant {
		b.attr(unix.NFTA_TABLE_FLAGS, be32(unix.NFT_TABLE_F_DORMANT))
	}
	b.end()
}

func (b *batch) chain(command int, name string, hook *Hook) {
	b.begin(command, unix.NLM_F_CREATE)
	b.str(unix.NFTA_CHAIN_TABLE, b.name)
	b.str(unix.NFTA_CHAIN_NAME, name)
	if hook != nil {
		h := nfnl.Attr(nil, unix.NFTA_HOOK_HOOKNUM, be32(hook.Number))
		h = nfnl.Attr(h, unix.NFTA_HOOK_PRIORITY, be32(uint32(hook.Priority)))
		b.attr(unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, h)
		b.str(unix.NFTA_CHAIN_TYPE, hook.Type)
	}
	b.end()
}

// flush deletes the rules of a chain, or of all chains if it is empty.
func (b *batch) flush(chain string) {
	b.begin(unix.NFT_MSG_DELRULE, 0)
	b.str(unix.NFTA_RULE_TABLE, b.name)
	if chain != "" {
		b.str(unix.NFTA_RULE_CHAIN, chain)
	}
	b.end()
}

func (b *batch) rule(chain string, r Rule) {
	b.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
	b.str(unix.NFTA_RULE_TABLE, b.name)
	b.str(unix.NFTA_RULE_CHAIN, chain)
	b.bytes = append(b.bytes, r...)
	b.end()
}

// failed returns the error of doing something to the table.
func (b *batch) failed(verb string, err error) error {
	return fmt.Errorf("%s nft table %s: %w", verb, b.name, err)
}

// refusal is what the kernel has refused, and where.
type refusal struct {
	what  string
	errno syscall.Errno
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %v", r.what, r.errno) }
func (r *refusal) Unwrap() error { return r.errno }

// large is how many bytes a batch has whose notifications cost more than to do without them.
const large = 1 << 16

// send has the kernel do the batch.
func (b *batch) send() (err error) {
	if len(b.bytes) < large {
		b.generation, err = nfnl.Commit(b.transact)
	} else {
		b.generation, err = unheard(b.transact)
	}
	return err
}

func (b *batch) transact() error {
	last, acknowledged := b.start, b.count
	flags := binary.NativeEndian.Uint16(b.bytes[last+6:])
	binary.NativeEndian.PutUint16(b.bytes[last+6:], flags|unix.NLM_F_ACK)
	b.control(unix.NFNL_MSG_BATCH_END)
	refused, err := nfnl.Transact(b.bytes, acknowledged)
	if errno := syscall.Errno(0); refused > 0 && errors.As(err, &errno) {
		return &refusal{b.describe(refused), errno}
	}
	return err
}

var commands = map[int]string{
	unix.NFT_MSG_NEWTABLE: "add table", unix.NFT_MSG_DELTABLE: "delete table",
	unix.NFT_MSG_NEWCHAIN: "add chain", unix.NFT_MSG_DELCHAIN: "delete chain",
	unix.NFT_MSG_NEWRULE: "add rule to", unix.NFT_MSG_DELRULE: "flush chain",
	unix.NFT_MSG_NEWSET: "add set", unix.NFT_MSG_DELSET: "delete set",
	unix.NFT_MSG_NEWSETELEM: "add elements to set", unix.NFT_MSG_DELSETELEM: "delete elements of set",
}

// describe says what a message is, by its number.
func (b *batch) describe(seq uint32) string {
	for m := b.bytes; len(m) >= unix.SizeofNlMsghdr; {
		n := int(binary.NativeEndian.Uint32(m))
		if binary.NativeEndian.Uint32(m[8:]) == seq && n > unix.SizeofNlMsghdr+4 {
			command := commands[int(binary.NativeEndian.Uint16(m[4:])&0xff)]
			var names []string
			for kind, v := range nfnl.Parse(m[unix.SizeofNlMsghdr+nl.SizeofNfgenmsg : n]).Attrs() {
				if kind <= 2 { // the table's name, and what is in it
					names = append(names, v.String())
				}
			}
			return fmt.Sprintf("%s %s", command, names[len(names)-1])
		}
		m = m[n:]
	}
	return "transaction"
}
