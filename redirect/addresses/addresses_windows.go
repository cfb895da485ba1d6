package addresses

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
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

// addressCalls are the calls of the IP helper API that change addresses. Wine has none of
// them, and is given others for its tests (.ci/wine).
var addressCalls = struct {
	find           func() error // why they cannot be called, nil if they can
	initialize     func(*windows.MibUnicastIpAddressRow)
	create, remove func(*windows.MibUnicastIpAddressRow) windows.Errno
}{
	find: func() error {
		return errors.Join(procInitAddress.Find(), procAddAddress.Find(), procDropAddress.Find())
	},
	initialize: func(row *windows.MibUnicastIpAddressRow) {
		_, _, _ = procInitAddress.Call(uintptr(unsafe.Pointer(row))) // returns nothing
	},
	create: func(row *windows.MibUnicastIpAddressRow) windows.Errno {
		code, _, _ := procAddAddress.Call(uintptr(unsafe.Pointer(row)))
		return windows.Errno(code)
	},
	remove: func(row *windows.MibUnicastIpAddressRow) windows.Errno {
		code, _, _ := procDropAddress.Call(uintptr(unsafe.Pointer(row)))
		return windows.Errno(code)
	},
}

// ipHelperAddresses is the addressHost of Windows. An address has no room for a mark, so
// the registry remembers which are ours, in a volatile key: it goes when the system
// ends, as do addresses that the IP helper API has added. An address is recorded before it
// is added and until it is removed.
type ipHelperAddresses struct {
	ipv6  bool
	index uint32 // of the interface
}

func newAddressHost(ipv6 bool, name string) (addressHost, error) {
	index, err := findAddressInterface(name)
	if err != nil {
		return nil, err
	}
	return &ipHelperAddresses{ipv6, index}, nil
}

// findAddressInterface returns the index of the interface with the name, or of that for which
// Set.Interface says it stands when empty.
func findAddressInterface(name string) (uint32, error) {
	if name == "" {
		name = os.Getenv(interfaceVar)
	}
	all, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("list interfaces: %w", err)
	}
	index := 0
	for _, i := range all {
		switch {
		case name != "" && i.Name == name:
			return uint32(i.Index), nil
		case name == "" && i.Name == hnsInterface:
			return uint32(i.Index), nil
		case i.Flags&net.FlagLoopback != 0 && index == 0:
			index = i.Index
		}
	}
	switch {
	case name != "":
		return 0, fmt.Errorf("find interface %q: there is none of this name", name)
	case index == 0:
		return 0, errors.New("find the loopback interface: there is none; name an interface")
	}
	return uint32(index), nil
}

func (h *ipHelperAddresses) list() (ours, others map[netip.Addr]struct{}, err error) {
	recorded, err := recordedAddresses(h.ipv6)
	if err != nil {
		return nil, nil, err
	}
	rows, err := addressRows(h.ipv6)
	if err != nil {
		return nil, nil, err
	}
	ours, others = make(map[netip.Addr]struct{}), make(map[netip.Addr]struct{})
	for i := range rows {
		ip := rowAddr(&rows[i])
		_, mine := recorded[ip]
		switch {
		case !mine:
			others[ip] = struct{}{}
		case rows[i].InterfaceIndex == h.index:
			ours[ip] = struct{}{}
		default: // of a start with another --service-interface
			if err := dropAddress(ip, rows[i].InterfaceIndex); err != nil {
				return nil, nil, fmt.Errorf("remove %s: %w", ip, err)
			}
		}
	}
	for ip := range recorded {
		if _, there := ours[ip]; !there {
			if err := forgetAddress(ip); err != nil {
				return nil, nil, err
			}
		}
	}
	return ours, others, nil
}

func (h *ipHelperAddresses) add(ip netip.Addr) (exists bool, err error) {
	if err := changeable(); err != nil {
		return false, err
	}
	if err := recordAddress(ip, h.index); err != nil {
		return false, err
	}
	switch errno := addressCalls.create(addressRow(ip, h.index)); errno {
	case windows.NO_ERROR:
		return false, nil
	case windows.ERROR_OBJECT_ALREADY_EXISTS:
		return true, forgetAddress(ip)
	default:
		return false, errors.Join(errno, forgetAddress(ip))
	}
}

// ready waits for duplicate detection, of all of them together. It is not asked for (see
// addressRow), which Windows before 10 did not heed.
func (h *ipHelperAddresses) ready(ctx context.Context, added []netip.Addr) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(addressReady)
	var errs []error
	for {
		var waiting []netip.Addr
		for _, ip := range added {
			row := addressRow(ip, h.index)
			if err := windows.GetUnicastIpAddressEntry(row); err != nil {
				errs = append(errs, fmt.Errorf("see whether %s is ready: %w", ip, err))
				continue
			}
			switch row.DadState {
			case windows.IpDadStatePreferred:
			case windows.IpDadStateTentative:
				waiting = append(waiting, ip)
			default:
				errs = append(errs, fmt.Errorf("%s cannot be used: duplicate detection ended in state %d", ip,
					row.DadState))
			}
		}
		if added = waiting; len(added) == 0 {
			return errors.Join(errs...)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return errors.Join(append(errs, ctx.Err())...)
		case <-deadline:
			return errors.Join(append(errs, fmt.Errorf("%d addresses, %s among them, are not ready after %v",
				len(added),
				added[0], addressReady))...)
		}
	}
}

func (h *ipHelperAddresses) remove(ip netip.Addr) error {
	if err := dropAddress(ip, h.index); err != nil {
		return err
	}
	return forgetAddress(ip)
}

// changeable reports whether this system has the calls that change addresses. Windows
// does, since Vista; wine does not.
func changeable() error {
	if err := addressCalls.find(); err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return nil
}

// dropAddress takes an address from an interface. That it is not there is no error.
func dropAddress(ip netip.Addr, index uint32) error {
	if err := changeable(); err != nil {
		return err
	}
	if errno := addressCalls.remove(addressRow(ip, index)); errno != windows.NO_ERROR &&
		errno != windows.ERROR_NOT_FOUND {
		return errno
	}
	return nil
}

// addressRow returns an address as the IP helper API takes it.
func addressRow(ip netip.Addr, index uint32) *windows.MibUnicastIpAddressRow {
	row := new(windows.MibUnicastIpAddressRow)
	if addressCalls.find() == nil { // else it is not going to be used (see changeable)
		addressCalls.initialize(row)
	}
	if ip.Is4() {
		a := (*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address))
		a.Family, a.Addr = windows.AF_INET, ip.As4()
	} else {
		row.Address.Family, row.Address.Addr = windows.AF_INET6, ip.As16()
	}
	row.InterfaceIndex = index
	row.OnLinkPrefixLength = uint8(ip.BitLen())
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
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	defer windows.FreeMibTable(unsafe.Pointer(table))
	rows := unsafe.Slice(&table.Table[0], table.NumEntries)
	return append([]windows.MibUnicastIpAddressRow(nil), rows...), nil
}

func addressFamily(ipv6 bool) uint16 {
	if ipv6 {
		return windows.AF_INET6
	}
	return windows.AF_INET
}

// busy asks for the table of TCP connections (iprtrmib.h, tcpmib.h).
func (h *ipHelperAddresses) busy() (map[netip.Addr]struct{}, error) {
	const (
		ownerPIDConnections      = 4 // TCP_TABLE_OWNER_PID_CONNECTIONS
		closed, listen, timeWait = 1, 2, 11
	)
	size := uint32(64 << 10)
	var table []byte
	for try := 0; ; try++ {
		table = make([]byte, size)
		code, _, _ := procConnections.Call(uintptr(unsafe.Pointer(&table[0])), uintptr(unsafe.Pointer(&size)), 0,
			uintptr(addressFamily(h.ipv6)), ownerPIDConnections, 0)
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
	row, addr, state := 24, 4, 0
	if h.ipv6 {
		row, addr, state = 56, 0, 48
	}
	out := make(map[netip.Addr]struct{})
	for n, rest := binary.LittleEndian.Uint32(table), table[4:]; n > 0 && len(rest) >= row; n, rest = n-1, rest[row:] {
		ip, _ := netip.AddrFromSlice(rest[addr : addr+map[bool]int{false: 4, true: 16}[h.ipv6]])
		switch binary.LittleEndian.Uint32(rest[state:]) {
		case closed, listen, timeWait: // nothing to lose
		default:
			out[ip] = struct{}{}
		}
	}
	return out, nil
}

// openRecord opens the key that says which addresses are ours, which is made if need be.
func openRecord() (registry.Key, error) {
	const volatile = 1 // REG_OPTION_VOLATILE
	path, err := windows.UTF16PtrFromString(addressRecordKey)
	if err != nil {
		return 0, err
	}
	var key registry.Key
	code, _, _ := procCreateKey.Call(uintptr(registry.LOCAL_MACHINE), uintptr(unsafe.Pointer(path)), 0, 0, volatile,
		registry.QUERY_VALUE|registry.SET_VALUE, 0, uintptr(unsafe.Pointer(&key)), 0)
	if code != 0 {
		return 0, fmt.Errorf("open registry key %s: %w", addressRecordKey, windows.Errno(code))
	}
	return key, nil
}

// recordedAddresses returns the addresses of one family that are ours, and the interface
// that each was put on.
func recordedAddresses(ipv6 bool) (map[netip.Addr]uint32, error) {
	key, err := openRecord()
	if err != nil {
		return nil, err
	}
	defer key.Close()
	names, err := key.ReadValueNames(0)
	if err != nil {
		return nil, fmt.Errorf("read registry key %s: %w", addressRecordKey, err)
	}
	out := make(map[netip.Addr]uint32)
	for _, name := range names {
		ip, err := netip.ParseAddr(name)
		if err != nil || ip.Is6() != ipv6 {
			continue
		}
		index, _, err := key.GetIntegerValue(name)
		if err != nil {
			return nil, fmt.Errorf("read registry key %s: %w", addressRecordKey, err)
		}
		out[ip] = uint32(index)
	}
	return out, nil
}

func recordAddress(ip netip.Addr, index uint32) error {
	key, err := openRecord()
	if err != nil {
		return err
	}
	defer key.Close()
	if err := key.SetDWordValue(ip.String(), index); err != nil {
		return fmt.Errorf("write registry key %s: %w", addressRecordKey, err)
	}
	return nil
}

func forgetAddress(ip netip.Addr) error {
	key, err := openRecord()
	if err != nil {
		return err
	}
	defer key.Close()
	if err := key.DeleteValue(ip.String()); err != nil && !errors.Is(err, registry.ErrNotExist) {
		return fmt.Errorf("write registry key %s: %w", addressRecordKey, err)
	}
	return nil
}

// cleanup removes what is ours, on whatever interface, and forgets it.
func cleanup(ipv6 bool) error {
	recorded, err := recordedAddresses(ipv6)
	if err != nil {
		return err
	}
	rows, err := addressRows(ipv6)
	if err != nil {
		return err
	}
	var errs []error
	for i := range rows {
		ip := rowAddr(&rows[i])
		if _, mine := recorded[ip]; !mine {
			continue
		}
		if err := dropAddress(ip, rows[i].InterfaceIndex); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", ip, err))
			delete(recorded, ip) // and is known for the next time
		}
	}
	for ip := range recorded {
		errs = append(errs, forgetAddress(ip))
	}
	return errors.Join(errs...)
}
