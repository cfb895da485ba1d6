package config

import (
	"math/bits"
	"strconv"

	"github.com/sluice-lb/sluice/kernelmodes/queue"
)

// fewestMarks is how many bits of marks data path queue needs: they number up to 65,535 endpoints.
const fewestMarks = 16

// checkMarks checks which bits of packet marks Sluice uses. Masquerading needs a bit outside the mask.
func (s *settings) checkMarks() {
	mask, err := strconv.ParseUint(s.markMask, 0, 32)
	m := uint32(mask)
	if n := bits.OnesCount32(m); err != nil || n < fewestMarks || bits.Len32(m)-bits.TrailingZeros32(m) != n {
		s.reject("mark-mask", "%q: give at least %d consecutive bits, like %#x", s.markMask, fewestMarks,
			uint32(queue.Mask))
		return
	}
	s.Kernel.MarkMask = m
	fields := [...]string{s.name("iptables-masquerade-bit"), s.File + ": nftables.masqueradeBit"}
	for i, bit := range []*int32{s.Document.IPTables.MasqueradeBit, s.Document.NFTables.MasqueradeBit} {
		if *bit >= 0 && *bit < 32 && m>>*bit&1 != 0 {
			s.reject("mark-mask", "%#x holds bit %d of %s: move one of them", m, *bit, fields[i])
			return
		}
	}
}
