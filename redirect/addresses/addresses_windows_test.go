package addresses

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// newRecord gives the test a registry key of its own.
func newRecord(t *testing.T) {
	t.Helper()
	before := addressRecordKey
	addressRecordKey = `SOFTWARE\Sluice\Test` + strings.ReplaceAll(t.Name(), "/", "-")
	t.Cleanup(func() {
		if err := registry.DeleteKey(registry.LOCAL_MACHINE, addressRecordKey); err != nil &&
			!errors.Is(err, registry.ErrNotExist) {
			t.Error(err)
		}
		addressRecordKey = before
	})
}

func TestAddressRecord(t *testing.T) {
	newRecord(t)
	v4, v6 := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("2001:db8::1")
	for _, ip := range []netip.Addr{v4, v6, v4} {
		check(t, recordAddress(address{ip, 7, true}))
	}
	for ipv6, ip := range map[bool]netip.Addr{false: v4, true: v6} {
		if got, err := recordedAddresses(ipv6); err != nil || len(got) != 1 || got[ip] != 7 {
			t.Errorf("recorded are %v, %v; want %s on 7", got, err, ip)
		}
	}
	for range 2 {
		check(t, forgetAddress(v4))
	}
	if got, err := recordedAddresses(false); err != nil || len(got) != 0 {
		t.Errorf("recorded are %v, %v", got, err)
	}
	// What the host has not is forgotten by the next look, and by a cleanup.
	if all, err := (host{}).list(true); err != nil || slices.ContainsFunc(all, isOurs) {
		t.Errorf("the host has %v, %v", all, err)
	}
	if got, err := recordedAddresses(true); err != nil || len(got) != 0 {
		t.Errorf("recorded after a look are %v, %v", got, err)
	}
	check(t, recordAddress(address{v4, 7, true}))
	check(t, Cleanup(t.Context()))
	if got, err := recordedAddresses(false); err != nil || len(got) != 0 {
		t.Errorf("recorded after a cleanup are %v, %v", got, err)
	}
}

func isOurs(at address) bool { return at.ours }

// TestAddressTable: what the host has besides ours is what the net package sees.
func TestAddressTable(t *testing.T) {
	newRecord(t)
	have, err := host{}.list(false)
	check(t, err)
	all, err := net.InterfaceAddrs()
	check(t, err)
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		check(t, err)
		if ip := p.Addr().Unmap(); ip.Is4() {
			if !slices.ContainsFunc(have, func(at address) bool { return at.ip == ip && !at.ours }) {
				t.Errorf("%s is not among %v", ip, have)
			}
		}
	}
}

// TestAddressRow: the union of socket addresses is filled for both families.
func TestAddressRow(t *testing.T) {
	for _, ip := range parse("10.96.0.1 2001:db8::1") {
		row := addressRow(address{ip, 7, true})
		if got := rowAddr(row); got != ip || row.InterfaceIndex != 7 || int(row.OnLinkPrefixLength) != ip.BitLen() ||
			row.SkipAsSource != 1 {
			t.Errorf("row of %s = %+v", ip, row)
		}
	}
}

func TestBusyAddresses(t *testing.T) {
	for _, x := range []struct {
		ipv6 bool
		at   string
	}{{false, "127.0.0.1"}, {true, "::1"}} {
		ip := netip.MustParseAddr(x.at)
		l, err := net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
		check(t, err)
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		check(t, err)
		defer c.Close()
		busy, err := host{}.busy(x.ipv6)
		check(t, err)
		if !busy[ip] {
			t.Errorf("%s has an open connection and is not among %v", ip, busy)
		}
		if busy[netip.MustParseAddr("10.96.0.1")] {
			t.Errorf("10.96.0.1 has none and is among %v", busy)
		}
	}
}

func TestAddressInterface(t *testing.T) {
	loopback, err := host{}.find("")
	check(t, err)
	i, err := net.InterfaceByIndex(int(loopback))
	check(t, err)
	t.Setenv(interfaceVar, "no such interface")
	if _, err := (host{}).find(""); err == nil || !strings.Contains(err.Error(), "no such interface") {
		t.Errorf("an interface that is not there: %v", err)
	}
	if got, err := (host{}).find(i.Name); err != nil || got != loopback {
		t.Errorf("%s = %d, %v; want %d", i.Name, got, err, loopback)
	}
	check(t, os.Setenv(interfaceVar, i.Name))
	if got, err := (host{}).find(""); err != nil || got != loopback {
		t.Errorf("from the environment: %d, %v; want %d", got, err, loopback)
	}
}

// TestWineLacksCalls is why .ci/wine/addresses has some of its own.
func TestWineLacksCalls(t *testing.T) {
	wine := windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
	for _, proc := range []*windows.LazyProc{procInitAddress, procAddAddress, procDropAddress} {
		switch err := proc.Find(); {
		case wine && err == nil:
			t.Errorf("this wine has %s: it need not be stood in for any more", proc.Name)
		case !wine && err != nil:
			t.Error(err)
		}
	}
}

// TestAddressesOnTheHost adds and removes addresses: of Windows as an administrator, of
// wine by what stands in for the calls that it lacks.
func TestAddressesOnTheHost(t *testing.T) {
	if procAddAddress.Find() != nil && os.Getenv("SLUICE_WINE_ADDRESSES") == "" {
		t.Skip("SKIPPED: wine without .ci/test-wine cannot change addresses")
	}
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6=%v", ipv6), func(t *testing.T) {
			newRecord(t)
			addrs := parse("10.96.255.251 10.96.255.252 10.96.255.253 10.96.255.254")
			if ipv6 {
				addrs = parse("2001:db8:96::1 2001:db8:96::2 2001:db8:96::3 2001:db8:96::4")
			}
			testOnHost(t, ipv6, addrs, "tcp")
			a := &Set{IPv6: ipv6}
			hold(t, a, addrs[1], addrs[2])
			if exists, err := a.sys.add(address{addrs[1], a.index, true}); !exists || err != nil {
				t.Errorf("what is there added again: %v, %v; want that it exists", exists, err)
			}
			if err := a.sys.remove(address{addrs[3], a.index, true}); err != nil {
				t.Errorf("what is not there removed: %v", err)
			}
			a = &Set{IPv6: ipv6} // the record of addrs[1] went with the attempt to add it
			if err := a.Sync(t.Context(), addrs[1:2]); err != nil || len(a.Held()) != 0 {
				t.Errorf("an address of others: %v, held %v", err, a.Held())
			}
			check(t, recordAddress(address{addrs[1], a.index, true}))
			for range 2 {
				check(t, Cleanup(t.Context()))
			}
			hold(t, &Set{IPv6: ipv6})
		})
	}
}
