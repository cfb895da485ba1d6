package redirect

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

var check = testbed.Check

func TestParsePortRange(t *testing.T) {
	for _, c := range []struct {
		in, out string
		size    int
	}{
		{"", "", 0},
		{"0", "", 0},
		{"0-0", "", 0},
		{" 100-200 ", "100-200", 101},
		{"100+10", "100-110", 11},
		{"100", "100", 1},
		{"100-100", "100", 1},
		{"100+0", "100", 1},
		{"1-65535", "1-65535", 65535},
		{"65535", "65535", 1},
	} {
		r, err := ParsePortRange(c.in)
		if err != nil || r.String() != c.out || r.Size() != c.size {
			t.Errorf("ParsePortRange(%q) = %q of size %d, %v; want %q of size %d", c.in, r, r.Size(), err, c.out, c.size)
		}
		if again, err := ParsePortRange(r.String()); again != r || err != nil {
			t.Errorf("ParsePortRange(%q) = %v, %v; want what it came from, %v", r, again, err, r)
		}
	}
	for _, in := range []string{"x", "-1", "100-", "-", "+", "100 - 200", "200-100", "65536", "1-65536", "65535+1",
		"0-100", "0+5", "1-2-3", "1+-1", "1,2", "0x10"} {
		_, err := ParsePortRange(in)
		if err == nil {
			t.Errorf("ParsePortRange(%q) is no error", in)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", in)) || !strings.Contains(err.Error(), `"100-200"`) {
			t.Errorf("ParsePortRange(%q): %v: does not name the value and the forms", in, err)
		}
	}
}

func FuzzParsePortRange(f *testing.F) {
	for _, s := range []string{"", "0-0", "1-2", "1+2", "3", "65535+65535"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParsePortRange(s)
		if err != nil {
			return
		}
		if r != (PortRange{}) && (r.First == 0 || r.Last < r.First || !r.Contains(r.First) || !r.Contains(r.Last)) {
			t.Errorf("ParsePortRange(%q) = %+v", s, r)
		}
		if again, err := ParsePortRange(r.String()); again != r || err != nil {
			t.Errorf("%q -> %+v -> %q -> %+v, %v", s, r, r.String(), again, err)
		}
	})
}

func TestContains(t *testing.T) {
	r := PortRange{First: 100, Last: 200}
	for port, want := range map[uint16]bool{0: false, 99: false, 100: true, 150: true, 200: true, 201: false} {
		if r.Contains(port) != want {
			t.Errorf("%v.Contains(%d) = %v", r, port, !want)
		}
	}
	if r := (PortRange{}); r.Contains(0) || !r.Contains(1) || !r.Contains(65535) {
		t.Error("the range of all ports contains 0, or not 1 or 65535")
	}
}

// listenOn returns a bind function for Claim that keeps what it binds.
func listenOn(t *testing.T, tried map[uint16]int, got *net.Listener) func(uint16) error {
	return func(port uint16) error {
		tried[port]++
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			*got = ln
			t.Cleanup(func() { ln.Close() })
		}
		return err
	}
}

// freeRange returns n neighbouring ports, none in use.
func freeRange(t *testing.T, n int) PortRange {
	t.Helper()
	for first := uint16(20000); first < 30000; first += uint16(n) {
		r := PortRange{first, first + uint16(n) - 1}
		free := true
		for port := r.First; port <= r.Last; port++ {
			ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				free = false
				continue
			}
			ln.Close()
		}
		if free {
			return r
		}
	}
	t.Fatal("no free ports")
	return PortRange{}
}

func TestClaim(t *testing.T) {
	r := freeRange(t, 8)
	var ln net.Listener
	seen := make(map[uint16]bool)
	for range r.Size() {
		tried := make(map[uint16]int)
		port, err := r.Claim(listenOn(t, tried, &ln))
		check(t, err)
		if !r.Contains(port) || seen[port] || ln.Addr().(*net.TCPAddr).Port != int(port) {
			t.Fatalf("claimed %d, bound %s, claimed before: %v", port, ln.Addr(), seen)
		}
		seen[port] = true
		for p, n := range tried {
			if n > 1 {
				t.Errorf("port %d was tried %d times", p, n)
			}
		}
	}
	tried := make(map[uint16]int)
	_, err := r.Claim(listenOn(t, tried, &ln))
	if err == nil || !inUse(err) || !strings.Contains(err.Error(), r.String()) {
		t.Errorf("Claim with all in use: %v", err)
	}
	if len(tried) != r.Size() {
		t.Errorf("Claim tried %d ports of %d", len(tried), r.Size())
	}
}

func TestClaimIsRandom(t *testing.T) {
	first := make(map[uint16]bool)
	for range 50 {
		port, err := (PortRange{1, 60000}).Claim(func(uint16) error { return nil })
		check(t, err)
		first[port] = true
	}
	if len(first) < 25 {
		t.Errorf("50 claims of 60,000 ports took only %d different ones", len(first))
	}
}

func TestClaimByKernel(t *testing.T) {
	tried := make(map[uint16]int)
	var ln net.Listener
	port, err := PortRange{}.Claim(listenOn(t, tried, &ln))
	if err != nil || port != 0 || tried[0] != 1 || len(tried) != 1 {
		t.Fatalf("Claim = %d, %v after trying %v", port, err, tried)
	}
	if ln.Addr().(*net.TCPAddr).Port == 0 {
		t.Error("the socket does not tell the port")
	}
}

func TestClaimStopsAtOtherErrors(t *testing.T) {
	calls := 0
	_, err := PortRange{1, 100}.Claim(func(uint16) error {
		calls++
		return os.NewSyscallError("bind", syscall.EACCES)
	})
	if !errors.Is(err, syscall.EACCES) || calls != 1 {
		t.Errorf("Claim: %v after %d calls, want EACCES after 1", err, calls)
	}
	_, err = PortRange{5, 4}.Claim(func(uint16) error { return nil })
	if err == nil {
		t.Error("Claim of an empty range is no error")
	}
}
