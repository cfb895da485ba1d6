package udp

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestPack looks at what goes through the kernel as one.
func TestPack(t *testing.T) {
	big := 1400
	for _, test := range []struct {
		name  string
		sizes []int
		plain bool
		want  []int
	}{
		{"one", []int{5}, false, []int{1}},
		{"equal ones", []int{5, 5, 5}, false, []int{3}},
		{"the last is shorter", []int{5, 5, 3, 5, 5}, false, []int{3, 2}},
		{"the next is longer", []int{5, 6, 6, 7}, false, []int{1, 2, 1}},
		{"empty ones", []int{0, 0, 5, 0, 5}, false, []int{1, 1, 1, 1, 1}},
		{"as many as a packet holds", slices.Repeat([]int{30000}, 5), false, []int{2, 2, 1}},
		{"a whole batch", slices.Repeat([]int{big}, slots), false, []int{slots}},
		{"one by one", []int{5, 5, 5}, true, []int{1, 1, 1}},
	} {
		var out outgoing
		out.reset(test.plain)
		for _, size := range test.sizes {
			out.add(make([]byte, size))
		}
		n := len(out.pack(0))
		if got := out.runs[:n]; !slices.Equal(got, test.want) {
			t.Errorf("%s: runs of %v, want %v", test.name, got, test.want)
		}
	}
}

// bursts are sizes of datagrams that wait together, in bytes.
var bursts = [][]int{
	slices.Repeat([]int{1200}, 8),
	{1200, 1200, 1200, 300},
	{64, 64, 65, 64, 1, 1, 0, 0, 7},
	slices.Repeat([]int{1400}, 3*slots+5),
	{1472, 1472, 1473, 1473, 1473, 2000, 2000, 9000, 9000}, // an Ethernet's MTU, and more
	slices.Repeat([]int{1200}, 8),
}

// exchange sends bursts both ways and compares what arrives, datagram by datagram.
func exchange(t *testing.T, p *proxy, b *backend, cl *client) {
	t.Helper()
	payload := func(size, i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, size) }
	buf := make([]byte, 1<<16)
	read := func(b *backend) ([]byte, netip.AddrPort) {
		_ = b.SetReadDeadline(time.Now().Add(patience))
		n, from, err := b.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatalf("%v; stats = %+v", err, p.Stats())
		}
		return buf[:n], from
	}
	cl.send("first")
	_, flow := read(b)
	if _, err := b.WriteToUDPAddrPort([]byte("answer"), flow); err != nil { // which ends the trial
		t.Fatal(err)
	}
	cl.receive()
	for k, sizes := range bursts {
		release := p.block()
		for i, size := range sizes {
			cl.send(string(payload(size, i)))
		}
		release()
		for i, size := range sizes {
			if got, from := read(b); from != flow || !bytes.Equal(got, payload(size, i)) {
				t.Fatalf("burst %d: datagram %d has %d bytes from %s, want %d from %s", k, i, len(got), from, size, flow)
			}
		}
		release = p.block()
		for i, size := range sizes {
			if _, err := b.WriteToUDPAddrPort(payload(size, i), flow); err != nil {
				t.Fatal(err)
			}
		}
		release()
		for i, size := range sizes {
			if got := cl.receive(); got != string(payload(size, i)) {
				t.Fatalf("burst %d: answer %d has %d bytes, want %d", k, i, len(got), size)
			}
		}
	}
	total := uint64(1)
	for _, sizes := range bursts {
		total += uint64(len(sizes))
	}
	eventually(t, fmt.Sprintf("%d datagrams are counted each way", total), func() bool {
		s := p.Stats()
		return s.DatagramsIn == total && s.DatagramsOut == total
	})
	if s := p.Stats(); s.TooLong != 0 || s.Busy != 0 {
		t.Errorf("stats = %+v", s)
	}
}

func TestBursts(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(at, func(t *testing.T) {
			b := listenUDP(t, at)
			p := startProxyAt(t, 1, nil, at, b.addr)
			exchange(t, p, b, dial(t, p.addr))
		})
	}
}

// TestBurstsByEthernet has datagrams that the way does not let pass as one.
func TestBurstsByEthernet(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	c := newCable(t, 0)
	var b *backend
	c.inOther(func() { b = listenUDP(t, "10.0.0.2:0") })
	p := startProxyAt(t, 1, nil, "10.0.0.1:0", b.addr)
	var cl *client
	c.inOther(func() { cl = dial(t, p.addr) })
	exchange(t, p, b, cl)
}
