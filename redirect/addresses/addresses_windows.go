package addresses

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

const (
	// interfaceVar and hnsInterface are how kube-proxy's removed winuserspace mode knew
	// the interface.
	interfaceVar = "INTERFACE_TO_ADD_SERVICE_IP"
	hnsInterface = "vEthernet (HNS Internal NIC)"

	// addressReady bounds the wait for the system to let addresses be used. To look for
	// duplicates takes it some three seconds for IPv4 and one for IPv6.
	addressReady = 5 * time.Second
)

var (
	iphlpapi         = windows.NewLazySystemDLL("iphlpapi.dll")
	procInitAddress  = iphlpapi.NewProc("InitializeUnicastIpAddressEntry")
	procAddAddress   = iphlpapi.NewProc("CreateUnicastIpAddressEntry")
	procDropAddress  = iphlpapi.NewProc("DeleteUnicastIpAddressEntry")
	procConnections  = iphlpapi.NewProc("GetExtendedTcpTable")
	procCreateKey    = windows.NewLazySystemDLL("advapi32.dll").NewProc("RegCreateKeyExW")
	addressRecordKey = `SOFTWARE\Sluice\Addresses` // below HKEY_LOCAL_MACHINE; another in tests
)

// The layout of MIB_UNICASTIPADDRESS_ROW (netioapi.h) as 64-bit Windows has it. A build
// for a processor on which x/sys lays it out otherwise, such as 386, fails here.
var (
	_ [80]byte = [unsafe.Sizeof(windows.MibUnicastIpAddressRow{})]byte{}
	_ [32]byte = [unsafe.Offsetof(windows.MibUnicastIpAddressRow{}.InterfaceLuid)]byte{}
	_ [40]byte = [unsafe.Offsetof(windows.MibUnicastIpAddressRow{}.InterfaceIndex)]byte{}
	_ [60]byte = [unsafe.Offsetof(windows.MibUnicastIpAddressRow{}.OnLinkPrefixLength)]byte{}
	_ [64]byte = [unsafe.Offsetof(windows.MibUnicastIpAddressRow{}.DadState)]byte{}
	_ [72]byte = [unsafe.Offsetof(windows.MibUnicastIpAddressRow{}.CreationTimeStamp)]byte{}
)

// callRow calls one of those that change addresses. Wine has none of them, and is given
// others for its tests (.ci/wine).
var callRow = func(proc *windows.LazyProc, row *windows.MibUnicastIpAddressRow) windows.Errno {
	if proc.Find() != nil {
		return windows.ERROR_PROC_NOT_FOUND
	}
	code, _, _ := proc.Call(uintptr(unsafe.Pointer(row)))
	return windows.Errno(code)
}

// host changes addresses by the IP helper API. An address has no room for a mark, so
// the registry remembers which are ours, in a volatile key: it goes when the system
// ends, as do addresses that the IP helper API has added. An address is recorded before it
// is added and until it is removed.
type host struct{}

// find finds the interface with the name, or that for which Set.Interface says it stands when empty.
func (host) find(name string) (uint32, error) {
	name = cmp.Or(name, os.Getenv(interfaceVar))
	if name != "" {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return 0, fmt.Errorf("find interface %q: %w", name, err)
		}
		return uint32(i.Index), nil
	}
	if i, err := net.InterfaceByName(hnsInterface); err == nil {
		return uint32(i.Index), nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			return uint32(i.Index), nil
		}
	}
	return 0, errors.New("find the loopback interface: there is none; name an interface")
}

// list forgets what is recorded and not there.
func (host) list(ipv6 bool) ([]address, error) {
	recorded, err := recordedAddresses(ipv6)
	if err != nil {
		return nil, err
	}
	rows, err := addressRows(ipv6)
	if err != nil {
		return nil, err
	}
	out := make([]address, 0, len(rows))
	for i := range rows {
		at := address{ip: rowAddr(&rows[i]), index: rows[i].InterfaceIndex}
		at.ours = recorded[at.ip] == at.index
		if out = append(out, at); at.ours {
			delete(recorded, at.ip)
		}
	}
	for ip := range recorded {
		if err := forgetAddress(ip); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (host) add(at address) (exists bool, err error) {
	if err := recordAddress(at); err != nil {
		return false, err
	}
	switch errno := callRow(procAddAddress, addressRow(at)); errno {
	case windows.NO_ERROR:
		return false, nil
	case windows.ERROR_OBJECT_ALREADY_EXISTS:
		return true, forgetAddress(at.ip)
	default:
		return false, errors.Join(errno, forgetAddress(at.ip))
	}
}

// ready waits for duplicate detection, of all of them together. It is not asked for (see
// addressRow), which Windows before 10 did not heed.
func (host) ready(ctx context.Context, added []address) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	ctx, cancel := context.WithTimeout(ctx, addressReady)
	defer cancel()
	var errs []error
	for {
		var waiting []address
		for _, at := range added {
			row := addressRow(at)
			if err := windows.GetUnicastIpAddressEntry(row); err != nil {
				errs = append(errs, fmt.Errorf("see whether %s is ready: %w", at.ip, err))
				continue
			}
			switch row.DadState {
			case windows.IpDadStatePreferred:
			case windows.IpDadStateTentative:
				waiting = append(waiting, at)
			default:
				errs = append(errs, fmt.Errorf("%s cannot be used: duplicate detection ended in state %d", at.ip,
					row.DadState))
			}
		}
		if added = waiting; len(added) == 0 {
			return errors.Join(errs...)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return errors.Join(append(errs, fmt.Errorf("%d addresses, %s among them, are not ready: %w",
				len(added), added[0].ip, ctx.Err()))...)
		}
	}
}

func (host) remove(at address) error {
	errno := callRow(procDropAddress, addressRow(at))
	if errno != windows.NO_ERROR && errno != windows.ERROR_NOT_FOUND {
		return errno
	}
	return forgetAddress(at.ip)
}

// addressRow returns an address as the IP helper API takes it.
func addressRow(at address) *windows.MibUnicastIpAddressRow {
	row := new(windows.MibUnicastIpAddressRow)
	callRow(procInitAddress, row) // returns nothing
	if at.ip.Is4() {
		a := (*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address))
		a.Family, a.Addr = windows.AF_INET, at.ip.As4()
	} else {
		row.Address.Family, row.Address.Addr = windows.AF_INET6, at.ip.As16()
	}
	row.InterfaceIndex = at.index
	row.OnLinkPrefixLength = uint8(at.ip.BitLen())
	row.ValidLifetime, row.PreferredLifetime = ^uint32(0), ^uint32(0)
	row.SkipAsSource = 1                       // what the node asks others is not from here
	row.DadState = windows.IpDadStatePreferred // no waiting for duplicate detection: every node has the address
	return row
}

func rowAddr(row *windows.MibUnicastIpAddressRow) netip.Addr {
	if row.Address.Family == windows.AF_INET {
		return netip.AddrFrom4((*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address)).Addr)
	}
	return netip.AddrFrom16(row.Address.Addr)
}

// addressRows returns the addresses of the host.
func addressRows(ipv6 bool) ([]windows.MibUnicastIpAddressRow, error) {
	var table *windows.MibUnicastIpAddressTable
	if err := windows.GetUnicastIpAddressTable(addressFamily(ipv6), &table); err != nil {
		if errors.Is(err, windows.ERROR_NOT_FOUND) { // none of this family
			return nil, nil
		}
		return nil, err
	}
	defer windows.FreeMibTable(unsafe.Pointer(table))
	rows := unsafe.Slice(&table.Table[0], table.NumEntries)
	return slices.Clone(rows), nil
}

func addressFamily(ipv6 bool) uint16 {
	if ipv6 {
		return windows.AF_INET6
	}
	return windows.AF_INET
}

// busy asks for the table of TCP connections (iprtrmib.h, tcpmib.h).
func (host) busy(ipv6 bool) (map[netip.Addr]bool, error) {
	const (
		ownerPIDConnections      = 4 // TCP_TABLE_OWNER_PID_CONNECTIONS
		closed, listen, timeWait = 1, 2, 11
	)
	size := uint32(64 << 10)
	var table []byte
	for try := 0; ; try++ {
		table = make([]byte, size)
		code, _, _ := procConnections.Call(uintptr(unsafe.Pointer(&table[0])), uintptr(unsafe.Pointer(&size)), 0,
			uintptr(addressFamily(ipv6)), ownerPIDConnections, 0)
		if code == 0 {
			break
		}
		if windows.Errno(code) != windows.ERROR_INSUFFICIENT_BUFFER || try == 10 { // it may grow between two calls
			return nil, windows.Errno(code)
		}
		size += 4 << 10
	}
	// MIB_TCPROW_OWNER_PID: state, local address and port, remote ones, process.
	// MIB_TCP6ROW_OWNER_PID: local address, scope and port, remote ones, state, process.
	row, addr, end, state := 24, 4, 8, 0
	if ipv6 {
		row, addr, end, state = 56, 0, 16, 48
	}
	out := make(map[netip.Addr]bool)
	for n, rest := binary.LittleEndian.Uint32(table), table[4:]; n > 0 && len(rest) >= row; n, rest = n-1, rest[row:] {
		ip, _ := netip.AddrFromSlice(rest[addr:end])
		switch binary.LittleEndian.Uint32(rest[state:]) {
		case closed, listen, timeWait: // nothing to lose
		default:
			out[ip] = true
		}
	}
	return out, nil
}

// inRecord calls f with the key that says which addresses are ours, which is made if need be.
func inRecord(f func(registry.Key) error) error {
	const volatile = 1 // REG_OPTION_VOLATILE
	path, err := windows.UTF16PtrFromString(addressRecordKey)
	if err != nil {
		return err
	}
	var key registry.Key
	code, _, _ := procCreateKey.Call(uintptr(registry.LOCAL_MACHINE), uintptr(unsafe.Pointer(path)), 0, 0, volatile,
		registry.QUERY_VALUE|registry.SET_VALUE, 0, uintptr(unsafe.Pointer(&key)), 0)
	if code != 0 {
		return fmt.Errorf("open registry key %s: %w", addressRecordKey, windows.Errno(code))
	}
	defer key.Close()
	if err := f(key); err != nil {
		return fmt.Errorf("use registry key %s: %w", addressRecordKey, err)
	}
	return nil
}

// recordedAddresses returns the addresses of one family that are ours, and the interface
// that each was put on.
func recordedAddresses(ipv6 bool) (map[netip.Addr]uint32, error) {
	out := make(map[netip.Addr]uint32)
	err := inRecord(func(key registry.Key) error {
		names, err := key.ReadValueNames(0)
		if err != nil {
			return err
		}
		for _, name := range names {
			ip, err := netip.ParseAddr(name)
			if err != nil || ip.Is6() != ipv6 {
				continue
			}
			index, _, err := key.GetIntegerValue(name)
			if err != nil {
				return err
			}
			out[ip] = uint32(index)
		}
		return nil
	})
	return out, err
}

func recordAddress(at address) error {
	return inRecord(func(key registry.Key) error { return key.SetDWordValue(at.ip.String(), at.index) })
}

func forgetAddress(ip netip.Addr) error {
	return inRecord(func(key registry.Key) error {
		if err := key.DeleteValue(ip.String()); !errors.Is(err, registry.ErrNotExist) {
			return err
		}
		return nil
	})
}

// removeDevice has nothing to do: none was made.
func removeDevice() error { return nil }
