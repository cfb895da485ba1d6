// Package addresses is one file more for that of the repository, which .ci/test-wine gives it
// by -overlay. It has the calls of the IP helper API that wine lacks: they check and read
// the rows at the offsets that Microsoft documents (netioapi.h, MIB_UNICASTIPADDRESS_ROW), and not by
// the type that the caller fills, and ip(8) changes what the host has. All else
// about addresses, reading them among it, is wine's own.
package addresses

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

func init() {
	// Set where the network is one of the tests' own.
	if os.Getenv("SLUICE_WINE_ADDRESSES") == "" {
		return
	}
	callRow = func(proc *windows.LazyProc, row *windows.MibUnicastIpAddressRow) windows.Errno {
		switch proc {
		case procInitAddress:
			initializeRow(row)
			return windows.NO_ERROR
		case procAddAddress:
			return change(row, "add", true)
		}
		return change(row, "delete", false)
	}
}

// unchanged is IpPrefixOriginUnchanged and IpSuffixOriginUnchanged.
const unchanged = 16

// rowBytes is the memory of a row.
func rowBytes(row *windows.MibUnicastIpAddressRow) *[80]byte { return (*[80]byte)(unsafe.Pointer(row)) }

func initializeRow(row *windows.MibUnicastIpAddressRow) {
	b := rowBytes(row)
	*b = [80]byte{}
	binary.LittleEndian.PutUint32(b[44:], unchanged)
	binary.LittleEndian.PutUint32(b[48:], unchanged)
	binary.LittleEndian.PutUint32(b[52:], ^uint32(0)) // valid
	binary.LittleEndian.PutUint32(b[56:], ^uint32(0)) // preferred
	b[60] = 255                                       // no prefix length
}

// change has ip(8) add or delete the address of a row, and waits until it is there, or not.
func change(row *windows.MibUnicastIpAddressRow, how string, there bool) windows.Errno {
	b := rowBytes(row)
	number := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	var ip netip.Addr
	switch binary.LittleEndian.Uint16(b[:]) {
	case windows.AF_INET:
		ip, _ = netip.AddrFromSlice(b[4:8])
	case windows.AF_INET6:
		ip, _ = netip.AddrFromSlice(b[8:24])
	default:
		return windows.ERROR_INVALID_PARAMETER
	}
	luid, prefix := binary.LittleEndian.Uint64(b[32:]), int(b[60])
	if luid != 0 || number(40) == 0 || number(44) != number(48) || number(52) < number(56) || prefix != ip.BitLen() {
		return windows.ERROR_INVALID_PARAMETER
	}
	if there && (b[61] != 1 || number(64) != windows.IpDadStatePreferred) { // what we mean to ask for
		return windows.ERROR_INVALID_PARAMETER
	}
	i, err := net.InterfaceByIndex(int(number(40)))
	if err != nil {
		return windows.ERROR_NOT_FOUND
	}
	if has(i, ip) == there {
		return map[bool]windows.Errno{false: windows.ERROR_NOT_FOUND, true: windows.ERROR_OBJECT_ALREADY_EXISTS}[there]
	}
	argv := []string{"ip", "address", how, netip.PrefixFrom(ip, prefix).String(), "dev", i.Name}
	if there && ip.Is6() {
		argv = append(argv, "nodad")
	}
	// Wine starts programs of Linux, and knows nothing of them afterwards.
	if _, _, err := syscall.StartProcess(`Z:\sbin\ip`, argv, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{uintptr(syscall.Stdin), uintptr(syscall.Stdout), uintptr(syscall.Stderr)},
	}); err != nil {
		return windows.ERROR_NOT_SUPPORTED
	}
	for deadline := time.Now().Add(10 * time.Second); has(i, ip) != there; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return windows.ERROR_TIMEOUT
		}
	}
	return windows.NO_ERROR
}

// has reports whether an interface has an address.
func has(i *net.Interface, ip netip.Addr) bool {
	all, _ := i.Addrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == ip {
			return true
		}
	}
	return false
}
