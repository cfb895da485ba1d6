package tcp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// announced gives the Service, which clients hear of by a PROXY header, these backends from now on.
func (p *proxy) announced(version uint8, backends ...netip.AddrPort) {
	p.t.Helper()
	p.serve(backends...)
	s := *p.LB.Table().At(0)
	s.Policies = &lb.Policies{ProxyProtocol: fmt.Sprint("v", version)}
	table, err := lb.NewTable([]*lb.Service{&s}, lb.Node{})
	check(p.t, err)
	p.LB.Update(table)
}

// announcedOf reads a PROXY header of version 1 or 2, and returns who the client is, what it has asked, and the TLVs.
func announcedOf(r *bufio.Reader) (src, dst, tlvs string, err error) {
	first, err := r.Peek(1)
	if err != nil {
		return "", "", "", err
	}
	if first[0] == 'P' {
		line, err := r.ReadString('\n')
		f := strings.Fields(line)
		if err != nil || len(f) != 6 || f[0] != "PROXY" || f[1] != "TCP4" {
			return "", "", "", fmt.Errorf("%q, %v", line, err)
		}
		return f[2] + ":" + f[4], f[3] + ":" + f[5], "", nil
	}
	fixed := make([]byte, 28)
	if _, err := io.ReadFull(r, fixed); err != nil {
		return "", "", "", err
	}
	if string(fixed[:14]) != "\r\n\r\n\x00\r\nQUIT\n\x21\x11" {
		return "", "", "", fmt.Errorf("%q", fixed)
	}
	rest := make([]byte, int(binary.BigEndian.Uint16(fixed[14:]))-12)
	_, err = io.ReadFull(r, rest)
	return at(fixed[16:], fixed[24:]), at(fixed[20:], fixed[26:]), string(rest), err
}

func at(addr, port []byte) string {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), binary.BigEndian.Uint16(port)).String()
}

// greeting tells each client, before it has said anything, what it has heard of it, and echoes then.
func greeting(t *testing.T, heard chan<- string) netip.AddrPort {
	return backend(t, func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		src, dst, tlvs, err := announcedOf(r)
		if err != nil {
			t.Error(err)
			return
		}
		if heard != nil {
			heard <- tlvs
		}
		fmt.Fprintf(c, "%s %s\n", src, dst)
		_, _ = io.Copy(c, r)
		_ = c.CloseWrite()
	})
}

// greets wants to be greeted by what the backend has heard, which is not counted, and to be served then.
func (p *proxy) greets() {
	p.t.Helper()
	before := p.Stats()
	c := p.dial()
	r := bufio.NewReader(c)
	greeted, err := r.ReadString('\n')
	if want := fmt.Sprintf("%s %s\n", c.LocalAddr(), frontend); err != nil || greeted != want {
		p.t.Fatalf("greeted %q, %v, want %q", greeted, err, want)
	}
	_, err = io.WriteString(c, "ping")
	check(p.t, err)
	check(p.t, c.CloseWrite())
	if got, err := io.ReadAll(r); err != nil || string(got) != "ping" {
		p.t.Errorf("echo %q, %v", got, err)
	}
	p.eventually("the connection has ended", func(s Stats) bool { return s.Active == 0 })
	if s := p.Stats(); s.BytesIn-before.BytesIn != 4 || s.BytesOut-before.BytesOut != uint64(len(greeted)+4) {
		p.t.Errorf("%d bytes in and %d out, want 4 and %d", s.BytesIn-before.BytesIn, s.BytesOut-before.BytesOut,
			len(greeted)+4)
	}
}

// TestAnnounced: a backend that speaks first hears of the client at once, over the refusals of others, from when the
// Service says so and until it does not; connections that are there stay as they are. Headers have identifiers of their
// own and the name of the Service.
func TestAnnounced(t *testing.T) {
	heard := make(chan string, 100)
	p := startProxy(t, nil, echoing(t))
	plain := p.dial()
	roundTrip(t, plain)
	speaking := greeting(t, heard)
	for _, version := range []uint8{1, 2} {
		p.announced(version, refusing(t), speaking, refusing(t))
		roundTrip(t, plain)
		check(t, plain.SetLinger(0))
		_ = plain.Close()
		p.eventually("no connection", func(s Stats) bool { return s.Active == 0 })
		for range 3 {
			p.greets()
		}
		plain = p.dial()
		_, err := bufio.NewReader(plain).ReadString('\n')
		check(t, err)
	}
	close(heard)
	var ids []string
	for tlvs := range heard {
		if tlvs == "" {
			continue // version 1
		}
		const prefix, service = "\x05\x00\x20", "\xe0\x00\x0bdefault/web\x03\x00\x04"
		if !strings.HasPrefix(tlvs, prefix) || tlvs[35:len(tlvs)-4] != service {
			t.Errorf("TLVs %q", tlvs)
		}
		if id := tlvs[3:35]; slices.Contains(ids, id) {
			t.Errorf("identifier %s again", id)
		} else {
			ids = append(ids, id)
		}
	}
	if len(ids) != 4 {
		t.Errorf("%d headers of version 2, want 4", len(ids))
	}
	p.serve(echoing(t))
	roundTrip(t, p.dial())
}

// TestAnnouncedBulk: what is spliced follows the header, and is all that is counted.
func TestAnnouncedBulk(t *testing.T) {
	const size = 8 << 20
	sums := make(chan int64, 1)
	p := startProxy(t, nil)
	p.announced(2, backend(t, func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		if _, _, _, err := announcedOf(r); err != nil {
			t.Error(err)
		}
		n, _ := io.Copy(io.Discard, r)
		sums <- n
	}))
	c := p.dial()
	_, err := io.CopyN(c, newPattern(1), size)
	check(t, err)
	check(t, c.CloseWrite())
	if n := <-sums; n != size {
		t.Errorf("%d bytes arrive behind the header, want %d", n, size)
	}
	p.eventually("all is counted", func(s Stats) bool { return s.BytesIn >= size })
	if s, of := p.Stats(), p.LB.Counters().All()[0].Backends[0].BytesIn; s.BytesIn != size || of > size {
		t.Errorf("%d bytes in, %d at the backend, want %d", s.BytesIn, of, size)
	}
}
