package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/ipvs"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// settings are what forwarding by ipvs needs of the kernel, below /proc/sys/net.
func (e *Engine) settings(release string) map[string]int {
	s := map[string]int{
		"ipv4/ip_forward":   1,
		"ipv4/vs/conntrack": 1, // masquerading works on conntrack's entries
		// What comes for a backend that has gone ends there and is chosen anew, instead of
		// waiting for a timeout; the memory of affinity too.
		"ipv4/vs/expire_nodest_conn":        1,
		"ipv4/vs/expire_quiescent_template": 1,
	}
	// From 4.1 on a client's port that is used again would wait a second while ipvs
	// and conntrack disagree, until 5.9 cured it (f719e3754ee2).
	if !netfilter.AtLeast(release, 5, 9) && netfilter.AtLeast(release, 4, 1) {
		s["ipv4/vs/conn_reuse_mode"] = 0
	}
	if e.StrictARP {
		s["ipv4/conf/all/arp_ignore"] = 1
		s["ipv4/conf/all/arp_announce"] = 2
	}
	return s
}

// applySettings writes what differs from what the kernel has.
func (e *Engine) applySettings(t *table) error {
	var errs []error
	for name, value := range e.settings(netfilter.Release()) {
		if err := set(filepath.Join("/proc/sys/net", name), value); err != nil {
			name = strings.ReplaceAll(name, "/", ".")
			errs = append(errs, fmt.Errorf("set sysctl net.%s to %d: %w", name, value, err))
		}
	}
	c := ipvs.Config{
		TimeoutTCP: roundUp(e.TCPTimeout), TimeoutTCPFin: roundUp(e.TCPFinTimeout), TimeoutUDP: roundUp(e.UDPTimeout),
	}
	if c != (ipvs.Config{}) {
		if err := t.SetConfig(&c); err != nil {
			errs = append(errs, fmt.Errorf("set timeouts of ipvs: %w", err))
		}
	}
	return errors.Join(errs...)
}

func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// set writes a number to a file that holds another.
func set(path string, value int) error {
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(have)) == strconv.Itoa(value) {
		return nil
	}
	err = os.WriteFile(path, strconv.AppendInt(nil, int64(value), 10), 0o644)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: set it on the host, or run with /proc/sys mounted writable", err)
	}
	return err
}
