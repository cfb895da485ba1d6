package udp

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"
)

// single returns a batch of one datagram for each size.
func single(sizes ...int) (batches []gsoBatch) {
	for _, size := range sizes {
		batches = append(batches, gsoBatch{size, size})
	}
	return batches
}

// TestPack looks at what goes through the kernel as one, over as many system calls as
// it takes, and that every byte goes once and in order.
func TestPack(t *testing.T) {
	for _, test := range []struct {
		name    string
		batches []gsoBatch
		plain   bool
		want    []int
	}{
		{"one datagram", single(5), false, []int{1}},
		{"equal datagrams", single(5, 5, 5), false, []int{3}},
		{"the last datagram is shorter", single(5, 5, 3, 5, 5), false, []int{3, 2}},
		{"the next datagram is longer", single(5, 6, 6, 7), false, []int{1, 2, 1}},
		{"empty datagrams", single(0, 0, 5, 0, 5), false, []int{1, 1, 1, 1, 1}},
		{"as many as a packet holds", single(slices.Repeat([]int{30000}, 5)...), false, []int{2, 2, 1}},
		{"as many as one read returns", single(slices.Repeat([]int{1400}, slots)...), false, []int{slots}},
		{"datagrams one by one", single(5, 5, 5), true, []int{1, 1, 1}},
		{"one", []gsoBatch{{1200, 32 * 1200}}, false, []int{32}},
		{"the last is shorter", []gsoBatch{{1200, 5*1200 + 7}, {1200, 2400}}, false, []int{6, 2}},
		{"equal ones", []gsoBatch{{100, 2000}, {100, 1000}, {100, 100}, {100, 50}, {100, 100}}, false, []int{32, 1}},
		{"as many as the kernel takes", []gsoBatch{{100, 4000}, {100, 2400}, {100, 100}}, false, []int{64, 1}},
		{"cut only where it has to be", []gsoBatch{{100, 4000}, {100, 4000}}, false, []int{40, 40}},
		{"of a newer kernel", []gsoBatch{{100, 12800}, {100, 100}}, false, []int{64, 64, 1}},
		{"of no kernel", []gsoBatch{{1, 65507}}, false, append(slices.Repeat([]int{64}, 1023), 35)},
		{"as many bytes as go as one", []gsoBatch{{30000, 65507}, {30000, 30000}}, false, []int{3, 1}},
		{"more bytes than go as one", []gsoBatch{{1310, 50*1310 + 27}, {65520, 65527}}, false, []int{50, 1, 1, 1}},
		{"a shorter batch", []gsoBatch{{100, 300}, {50, 100}, {50, 50}, {100, 100}}, false, []int{3, 3, 1}},
		{"one by one", []gsoBatch{{100, 4050}, {7, 7}}, true, slices.Repeat([]int{1}, 42)},
		{"around an empty one", []gsoBatch{{100, 250}, {0, 0}, {100, 250}}, false, []int{3, 1, 3}},
	} {
		out := outgoing{gso: true}
		out.reset(test.plain)
		var all []byte
		total := 0
		for i, sent := range test.batches {
			p := numbered(i, sent.size)
			all = append(all, p...)
			out.add(p, sent.segment)
		}
		for _, n := range test.want {
			total += n
		}
		if out.left != total {
			t.Errorf("%s: %d datagrams, want %d", test.name, out.left, total)
		}
		var got []int
		var sent []byte
		for out.left > 0 {
			headers := out.pack()
			if len(headers) == 0 {
				t.Fatalf("%s: %d datagrams do not go", test.name, out.left)
			}
			vector := 0
			for i := range headers {
				r := &out.runs[i]
				for range r.vectors {
					v := &out.vector[vector]
					sent = append(sent, unsafe.Slice(v.Base, v.Len)...)
					vector++
				}
				got = append(got, r.datagrams)
				out.left -= r.datagrams
				out.next = r.end
			}
		}
		if !slices.Equal(got, test.want) || !bytes.Equal(sent, all) {
			t.Errorf("%s: runs of %v, want %v", test.name, got, test.want)
		}
	}
}

// TestSkip gives up single datagrams of batches.
func TestSkip(t *testing.T) {
	out := outgoing{gso: true}
	out.reset(false)
	out.add(numbered(0, 250), 100)
	out.add(numbered(0, 0), 0)
	out.add(numbered(0, 100), 100)
	for i, want := range []place{{0, 100}, {0, 200}, {1, 0}, {2, 0}, {3, 0}} {
		if out.skip(); out.next != want || out.left != 4-i {
			t.Errorf("after %d: %+v with %d left, want %+v with %d", i+1, out.next, out.left, want, 4-i)
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
	flow := cl.endTrial(b)
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
	l := newLab(t)
	b := inPod(l, func() *backend { return listenUDP(t, onPod) })
	p := startProxyAt(t, 1, nil, onNode, b.addr)
	cl := inPod(l, func() *client { return dial(t, p.addr) })
	exchange(t, p, b, cl)
}
