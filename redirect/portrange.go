package redirect

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// PortRange is the set of ports that proxy sockets may be bound to, both ends
// included. The zero PortRange leaves the choice to the kernel.
type PortRange struct {
	First, Last uint16
}

const portForms = `want "100-200", "100+100" or "100", both ends included, or "", "0" or "0-0" to let the kernel choose`

// ParsePortRange parses the value of --proxy-port-range, in the forms that
// kube-proxy takes: "first-last", "first+more" and "port", and "", "0" or "0-0"
// for any port.
func ParsePortRange(s string) (PortRange, error) {
	v := strings.TrimSpace(s)
	if v == "" || v == "0" || v == "0-0" {
		return PortRange{}, nil
	}
	first, last := v, v
	offset := false
	if i := strings.IndexAny(v, "-+"); i >= 0 {
		first, last, offset = v[:i], v[i+1:], v[i] == '+'
	}
	fail := func(problem string, args ...any) (PortRange, error) {
		return PortRange{}, fmt.Errorf("parse port range %q: %s: %s", s, fmt.Sprintf(problem, args...), portForms)
	}
	a, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return fail("%q is not a port (1 to 65535)", first)
	}
	b, err := strconv.ParseUint(last, 10, 16)
	if err != nil {
		return fail("%q is not a number from 0 to 65535", last)
	}
	if offset {
		b += a
	}
	switch {
	case a == 0:
		return fail("port 0 cannot begin a range")
	case b > 65535:
		return fail("it ends at %d, after port 65535", b)
	case b < a:
		return fail("it ends before it begins")
	}
	return PortRange{First: uint16(a), Last: uint16(b)}, nil
}

// any reports whether the kernel chooses.
func (r PortRange) any() bool { return r.First == 0 }

// Size returns the number of ports in the range, 0 if the kernel chooses.
func (r PortRange) Size() int {
	if r.any() || r.Last < r.First {
		return 0
	}
	return int(r.Last) - int(r.First) + 1
}

// Contains reports whether a socket could get the port: whether it is in the
// range or, if the kernel chooses, whether it is a port at all.
func (r PortRange) Contains(port uint16) bool {
	if r.any() {
		return port != 0
	}
	return r.First <= port && port <= r.Last
}

// String returns a form that ParsePortRange takes: "", "100" or "100-200".
func (r PortRange) String() string {
	switch {
	case r.any():
		return ""
	case r.First == r.Last:
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Claim calls bind with ports of the range, in random order and each at most
// once, until bind does not report that the port is in use, and returns the port
// that bind took. An error of bind other than "in use" ends the search and is
// returned. If the kernel chooses, bind is called once, with 0, and Claim returns
// 0: the port is then to be read from the socket that bind made.
func (r PortRange) Claim(bind func(port uint16) error) (uint16, error) {
	if r.any() {
		if err := bind(0); err != nil {
			return 0, fmt.Errorf("bind a port chosen by the kernel: %w", err)
		}
		return 0, nil
	}
	var last error
	for _, i := range rand.Perm(r.Size()) {
		port := r.First + uint16(i)
		err := bind(port)
		if err == nil {
			return port, nil
		}
		if !inUse(err) {
			return 0, fmt.Errorf("bind port %d: %w", port, err)
		}
		last = err
	}
	if last == nil {
		return 0, fmt.Errorf("claim a port of %d-%d: the range is empty", r.First, r.Last)
	}
	return 0, fmt.Errorf("claim a port of %s: all %d are in use: widen --proxy-port-range: %w", r, r.Size(), last)
}
