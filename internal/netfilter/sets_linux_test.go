package netfilter

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestSetMembers writes members of every kind of set and reads them back, more than fit
// into one message.
func TestSetMembers(t *testing.T) {
	testbed.NewHostsT(t, "host")[0].Enter(t)
	for _, ipv6 := range []bool{false, true} {
		l := lab{IPTables: testbed.IPTables{IPv6: ipv6}}
		kinds := map[string]func(i int) Member{
			HashIPPort: func(i int) Member {
				return Member{Addr: l.addr(i % 256), Protocol: []uint8{6, 17, 132}[i%3], Port: uint16(i + 1)}
			},
			BitmapPort: func(i int) Member { return Member{Port: uint16(i)} },
			HashNet: func(i int) Member {
				a := l.addr(i % 256)
				return Member{Net: netip.PrefixFrom(a, a.BitLen()-i%2).Masked()}
			},
			HashIPPortNet: func(i int) Member {
				a := l.addr(i % 256)
				return Member{Addr: a, Protocol: 6, Port: uint16(i), Net: netip.PrefixFrom(a, 1+i%a.BitLen()).Masked()}
			},
		}
		for kind, make := range kinds {
			set := Set{Name: "TEST-" + strings.Map(func(r rune) rune {
				return map[bool]rune{true: '-', false: r}[r == ':' ||
					r == ',']
			}, kind), Type: kind, IPv6: ipv6}
			testMembers(t, set, 2*MembersPerMessage+1, make)
		}
	}
}

func testMembers(t *testing.T, set Set, n int, member func(int) Member) {
	t.Helper()
	must := func(what string, err error) {
		if t.Helper(); err != nil {
			t.Errorf("%s %s: %v", what, set.Name, err)
		}
	}
	must("create", set.Create())
	must("create again", set.Create())
	var list []Member
	for i := range n {
		list = append(list, member(i))
	}
	slices.SortFunc(list, Member.Compare)
	list = slices.Compact(list)
	sent, err := set.Add(list)
	must("add to", err)
	if messages := uint64(len(list)+MembersPerMessage-1) / MembersPerMessage; sent != messages {
		t.Errorf("%s: %d messages, want %d", set.Name, sent, messages)
	}
	_, err = set.Add(list[:2])
	must("add again to", err)
	for range 2 {
		_, err = set.Delete(list[:1])
		must("delete from", err)
	}
	have, err := set.Read()
	must("read", err)
	if !slices.Equal(have, list[1:]) {
		t.Errorf("%s has %d members, want %d", set.Name, len(have), len(list)-1)
	}
	other := set
	if other.Type = HashIPPort; set.Type == HashIPPort {
		other.Type = HashNet
	}
	must("create over another", other.Create())
	if _, err := other.Read(); err == nil || !strings.Contains(err.Error(), "is a "+set.Type) {
		t.Errorf("read %s as %s: %v", set.Name, other.Type, err)
	}
	for range 2 {
		must("destroy", set.Destroy(t.Context()))
	}
	if _, err := set.Read(); err == nil {
		t.Errorf("%s is there after it was destroyed", set.Name)
	}
}
