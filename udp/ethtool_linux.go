package udp

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What ethtool(8) asks the kernel (linux/ethtool.h).
const (
	featureNames  = 4   // ETH_SS_FEATURES
	maxFeatures   = 256 // there are some 60
	featureLength = 32  // ETH_GSTRING_LEN
)

// featureStrings is struct ethtool_gstrings.
type featureStrings struct {
	cmd, set, n uint32
	name        [maxFeatures][featureLength]byte
}

// features is struct ethtool_gfeatures. Its blocks have a bit for each feature.
type features struct {
	cmd, size uint32
	blocks    [maxFeatures / 32]struct{ available, requested, active, neverChanged uint32 }
}

// segmentsUDP reports whether an interface takes several datagrams as one (tx-udp-segmentation, ethtool(8)).
func segmentsUDP(name string) (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(fd) }()
	names := &featureStrings{cmd: unix.ETHTOOL_GSTRINGS, set: featureNames}
	if err := ethtool(fd, name, unsafe.Pointer(names)); err != nil {
		return false, fmt.Errorf("read names of features: %w", err)
	}
	i := slices.IndexFunc(names.name[:min(names.n, maxFeatures)], func(b [featureLength]byte) bool {
		return unix.ByteSliceToString(b[:]) == "tx-udp-segmentation"
	})
	if i < 0 {
		return false, nil // before Linux 4.18
	}
	set := &features{cmd: unix.ETHTOOL_GFEATURES, size: maxFeatures / 32}
	if err := ethtool(fd, name, unsafe.Pointer(set)); err != nil {
		return false, fmt.Errorf("read features of %s: %w", name, err)
	}
	return set.blocks[i/32].active&(1<<(i%32)) != 0, nil
}

// ethtool has the kernel answer a question about an interface in place.
func ethtool(fd int, name string, question unsafe.Pointer) error {
	var request struct { // ifreq, netdevice(7)
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	request.data = question
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return errno
	}
	return nil
}
