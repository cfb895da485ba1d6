package queue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// begins is a packet of SCTP with an INIT.
func begins(from, to uint16, tag uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(b, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// TestSCTPRefused: a client of SCTP beyond a limit hears at once that it is refused, by a message that has its tag, and
// so does one that has waited for too long; where the kernel has SCTP, connect(2) fails then.
func TestSCTPRefused(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(lab.Family(v6), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, testbed.Config{Pods: 1})
			s := lab.Simple("limited", lab.VIP(v6, 1).String(), 7, lb.SCTP, lab.Backend(n.Pods[0], v6, 7))
			s.Policies = &lb.Policies{MaxConnections: 1}
			queued := lab.Simple("queued", lab.VIP(v6, 2).String(), 7, lb.SCTP, s.Backends...)
			queued.Policies = &lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(100 * time.Millisecond)}
			n.Sync(s, queued)
			// What comes for a protocol that the pod does not have it refuses, too.
			n.Pods[0].Run(t, map[bool]string{false: "iptables-nft", true: "ip6tables-nft"}[v6], "-I", "INPUT", "-p", "sctp",
				"-j", "DROP")
			var raw, errs net.PacketConn
			sctp, icmp, kind := "ip4:132", "ip4:icmp", []byte{3, 2}
			if v6 {
				sctp, icmp, kind = "ip6:132", "ip6:ipv6-icmp", []byte{4, 1}
			}
			own := lab.Address(n.Client, v6)
			n.Client.DoT(t, func() (err error) { raw, err = net.ListenPacket(sctp, own.String()); return err })
			n.Client.DoT(t, func() (err error) { errs, err = net.ListenPacket(icmp, own.String()); return err })
			defer raw.Close()
			defer errs.Close()
			send := func(s *lb.Service, from uint16) {
				t.Helper()
				to := s.Addresses[0].Addr
				_, err := raw.WriteTo(begins(from, to.Port(), 0xabcd0000+uint32(from)), &net.IPAddr{IP: to.Addr().AsSlice()})
				testbed.Check(t, err)
			}
			hears := func(s *lb.Service, from uint16) {
				t.Helper()
				testbed.Check(t, errs.SetReadDeadline(time.Now().Add(testbed.Patience)))
				if err := refused(errs, kind, own, s.Addresses[0].Addr, from); err != nil {
					t.Error(err)
				}
			}
			for _, s := range []*lb.Service{&s, &queued} {
				before := n.Stats().Chosen
				send(s, 20001)
				testbed.Eventually(t, "the first is let through", func() bool { return n.Stats().Chosen == before+1 })
				send(s, 20002)
				hears(s, 20002)
			}
			if testbed.HasSCTP() {
				c, err := n.Client.DialSCTP(netip.Addr{}, s.Addresses[0].Addr, testbed.Patience)
				if err == nil {
					c.Close()
				}
				if !errors.Is(err, syscall.ECONNREFUSED) { // and not that it has timed out
					t.Errorf("connect: %v, want refused", err)
				}
			}
		})
	}
}

// refused reads messages up to one of a kind about the INIT of a port, which is to have its addresses, ports and tag.
func refused(errs net.PacketConn, kind []byte, client netip.Addr, asked netip.AddrPort, from uint16) error {
	b := make([]byte, 1500)
	for {
		n, _, err := errs.ReadFrom(b)
		if err != nil {
			return fmt.Errorf("await the refusal of port %d: %w", from, err)
		}
		const icmp = 8
		if n < icmp || !bytes.Equal(b[:2], kind) {
			continue
		}
		ip := b[icmp:n]
		size, addrs := int(ip[0]&15)*4, 12
		if client.Is6() {
			size, addrs = 40, 8
		}
		sent, got := begins(from, asked.Port(), 0xabcd0000+uint32(from)), ip[size:]
		if len(got) < 20 || !bytes.Equal(got[:8], sent[:8]) || !bytes.Equal(got[12:20], sent[12:20]) {
			return fmt.Errorf("it has %x, want the ports and the tag of %x", got, sent)
		}
		if want := append(client.AsSlice(), asked.Addr().AsSlice()...); !bytes.Equal(ip[addrs:addrs+len(want)], want) {
			return fmt.Errorf("it has addresses %x, want %x", ip[addrs:addrs+len(want)], want)
		}
		return nil
	}
}
