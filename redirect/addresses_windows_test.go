package redirect

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/windows/registry"
)

// newRecord gives the test a registry key of its own.
func newRecord(t *testing.T) {
	t.Helper()
	before := addressRecordKey
	addressRecordKey = `SOFTWARE\Sluice\Test` + strings.ReplaceAll(t.Name(), "/", "-")
	t.Cleanup(func() {
		if err := registry.DeleteKey(registry.LOCAL_MACHINE, addressRecordKey); err != nil && !errors.Is(err, registry.ErrNotExist) {
			t.Error(err)
		}
		addressRecordKey = before
	})
}

func TestAddressRecord(t *testing.T) {
	newRecord(t)
	v4, v6 := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("2001:db8::1")
	for _, ip := range []netip.Addr{v4, v6, v4} {
		if err := recordAddress(ip, 7); err != nil {
			t.Fatal(err)
		}
	}
	for ipv6, ip := range map[bool]netip.Addr{false: v4, true: v6} {
		if got, err := recordedAddresses(ipv6); err != nil || len(got) != 1 || got[ip] != 7 {
			t.Errorf("recorded are %v, %v; want %s on 7", got, err, ip)
		}
	}
	for range 2 {
		if err := forgetAddress(v4); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := recordedAddresses(false); err != nil || len(got) != 0 {
		t.Errorf("recorded are %v, %v", got, err)
	}
	// What the host has not is forgotten by the next look, and by a cleanup.
	if ours, _, err := mustHost(t, true).list(); err != nil || len(ours) != 0 {
		t.Errorf("ours are %v, %v", ours, err)
	}
	if got, err := recordedAddresses(true); err != nil || len(got) != 0 {
		t.Errorf("recorded after a look are %v, %v", got, err)
	}
	if err := recordAddress(v4, 7); err != nil {
		t.Fatal(err)
	}
	if err := CleanupAddresses(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := recordedAddresses(false); err != nil || len(got) != 0 {
		t.Errorf("recorded after a cleanup are %v, %v", got, err)
	}
}

func mustHost(t *testing.T, ipv6 bool) addressHost {
	t.Helper()
	h, err := newAddressHost(ipv6, "")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestAddressTable: what the host has besides ours is what the net package sees.
func TestAddressTable(t *testing.T) {
	newRecord(t)
	_, others, err := mustHost(t, false).list()
	if err != nil {
		t.Fatal(err)
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			t.Fatal(err)
		}
		if ip := p.Addr().Unmap(); ip.Is4() {
			if _, ok := others[ip]; !ok {
				t.Errorf("%s is not among %v", ip, others)
			}
		}
	}
}

// TestAddressRow: the union of socket addresses is filled for both families.
func TestAddressRow(t *testing.T) {
	for _, ip := range parse("10.96.0.1 2001:db8::1") {
		row := addressRow(ip, 7)
		if got := rowAddr(row); got != ip || row.InterfaceIndex != 7 || int(row.OnLinkPrefixLength) != ip.BitLen() || row.SkipAsSource != 1 {
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
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		busy, err := mustHost(t, x.ipv6).busy()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := busy[ip]; !ok {
			t.Errorf("%s has an open connection and is not among %v", ip, busy)
		}
		if _, ok := busy[netip.MustParseAddr("10.96.0.1")]; ok {
			t.Errorf("10.96.0.1 has none and is among %v", busy)
		}
	}
}

func TestAddressInterface(t *testing.T) {
	loopback, err := findAddressInterface("")
	if err != nil {
		t.Fatal(err)
	}
	i, err := net.InterfaceByIndex(int(loopback))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(interfaceVar, "no such interface")
	if _, err := findAddressInterface(""); err == nil || !strings.Contains(err.Error(), "no such interface") {
		t.Errorf("an interface that is not there: %v", err)
	}
	if got, err := findAddressInterface(i.Name); err != nil || got != loopback {
		t.Errorf("%s = %d, %v; want %d", i.Name, got, err, loopback)
	}
	if err := os.Setenv(interfaceVar, i.Name); err != nil {
		t.Fatal(err)
	}
	if got, err := findAddressInterface(""); err != nil || got != loopback {
		t.Errorf("from the environment: %d, %v; want %d", got, err, loopback)
	}
}

// TestAddAddress adds and removes one where that can be done: as an administrator of Windows. Under
// wine it cannot, and nothing may be left in the record then.
func TestAddAddress(t *testing.T) {
	newRecord(t)
	ip := netip.MustParseAddr("10.96.255.254")
	a := &Addresses{}
	err := a.Sync(t.Context(), []netip.Addr{ip})
	if err != nil {
		if got, recordErr := recordedAddresses(false); recordErr != nil || len(got) != 0 {
			t.Errorf("after %v recorded are %v, %v", err, got, recordErr)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Fatal(err)
		}
		t.Skipf("SKIPPED: %v", err)
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		t.Error(err)
	} else {
		l.Close()
	}
	if err := a.Sync(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, others, err := mustHost(t, false).list(); err != nil || len(a.Held()) != 0 {
		t.Errorf("held %v, %v", a.Held(), err)
	} else if _, ok := others[ip]; ok {
		t.Error("the address is still there")
	}
}
