package proxyproto

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"
)

// TestVersion1: the examples of the specification (section 2.1): its longest lines, and a header without addresses.
func TestVersion1(t *testing.T) {
	all6 := "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	for _, c := range []struct{ src, dst, want string }{
		{"255.255.255.255:65535", "255.255.255.255:65535",
			"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"},
		{"[" + all6 + "]:65535", "[" + all6 + "]:65535", "PROXY TCP6 " + all6 + " " + all6 + " 65535 65535\r\n"},
		{"192.168.0.1:56324", "192.168.0.11:443", "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"},
		{"[fe80::1%eth0]:1", "[2001:db8::1]:2", "PROXY TCP6 fe80::1 2001:db8::1 1 2\r\n"},
		{"192.168.0.1:1", "[::1]:2", "PROXY UNKNOWN\r\n"},
	} {
		h := Header{Source: netip.MustParseAddrPort(c.src), Destination: netip.MustParseAddrPort(c.dst),
			UniqueID: []byte("x")}
		if got := string(h.Append(nil, V1)); got != c.want {
			t.Errorf("%s to %s: %q, want %q", c.src, c.dst, got, c.want)
		}
	}
	if got := string(new(Header).Append([]byte("before"), V1)); got != "beforePROXY UNKNOWN\r\n" {
		t.Errorf("no address: %q", got)
	}
}

// TestVersion2: the bytes of section 2.2, and the examples of lengths and of families there.
func TestVersion2(t *testing.T) {
	const sig = "0d0a0d0a000d0a515549540a"
	for _, c := range []struct {
		name string
		h    Header
		want string // without the CRC32C
	}{
		{"TCP over IPv4", header("192.0.2.1:258", "198.51.100.2:772"),
			sig + "21" + "11" + "0013" + "c0000201" + "c6336402" + "0102" + "0304"},
		{"UDP over IPv4", datagram(header("192.0.2.1:258", "198.51.100.2:772")),
			sig + "21" + "12" + "0013" + "c0000201" + "c6336402" + "0102" + "0304"},
		{"TCP over IPv6", header("[2001:db8::1]:258", "[2001:db8::2]:772"),
			sig + "21" + "21" + "002b" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002" +
				"0102" + "0304"},
		{"UDP over IPv6", datagram(header("[2001:db8::1]:258", "[2001:db8::2]:772")),
			sig + "21" + "22" + "002b" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002" +
				"0102" + "0304"},
		{"not known", Header{}, sig + "21" + "00" + "0007"},
		{"TLVs", Header{UniqueID: []byte("id"), Namespace: "a", Name: "b"}, sig + "21" + "00" + "0012" + "0500026964" +
			"e00003612f62"},
	} {
		got := c.h.Append(nil, V2)
		if hex := hex.EncodeToString(got[:len(got)-7]); hex != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, hex, c.want)
		}
		if _, err := read2(got); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if got := hex.EncodeToString(AppendLocal(nil, V2)); got != sig+"20000000" {
		t.Errorf("LOCAL is %s", got)
	}
}

func header(src, dst string) Header {
	return Header{Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst)}
}

func datagram(h Header) Header {
	h.Datagram = true
	return h
}

func TestIDs(t *testing.T) {
	ids := IDs{Maker: 0xa1}
	for _, want := range []string{"00000000000000a10000000000000001", "00000000000000a10000000000000002"} {
		if got := string(ids.Append(nil)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	h := header("[2001:db8::1]:65535", "[2001:db8::2]:65535")
	h.UniqueID, h.Namespace, h.Name = make([]byte, 300), strings.Repeat("s", 300), strings.Repeat("s", 300)
	b := make([]byte, 0, MaxLen)
	if got := len(h.Append(nil, V2)); got != MaxLen {
		t.Errorf("the longest header has %d bytes, MaxLen is %d", got, MaxLen)
	}
	if n := testing.AllocsPerRun(100, func() { h.Append(h.Append(b, V1)[:0], V2) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzAppend: a reader written after the specification gets back what was said.
func FuzzAppend(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, []byte{192, 0, 2, 2}, uint16(1), uint16(2), false, "id", "default", "web")
	f.Add(make([]byte, 16), make([]byte, 16), uint16(65535), uint16(0), true, "", "default", strings.Repeat("x", 200))
	f.Add([]byte(nil), make([]byte, 4), uint16(1), uint16(1), true, strings.Repeat("x", 200), "", "")
	f.Fuzz(func(t *testing.T, src, dst []byte, sport, dport uint16, datagram bool, id, namespace, name string) {
		from, _ := netip.AddrFromSlice(src)
		to, _ := netip.AddrFromSlice(dst)
		h := Header{Source: netip.AddrPortFrom(from, sport), Destination: netip.AddrPortFrom(to, dport),
			Datagram: datagram,
			UniqueID: []byte(id), Namespace: namespace, Name: name}
		b := h.Append(nil, V2)
		got, err := read2(b)
		if err != nil {
			t.Fatal(err)
		}
		want := said{h.Source, h.Destination, datagram, cut(id, 128), ""}
		if !h.known() {
			want = said{id: want.id}
		}
		if name != "" {
			want.service = cut(namespace, 63) + "/" + cut(name, 63)
		}
		if got != want {
			t.Errorf("%+v is read as %+v", want, got)
		}
		for i := range b { // the checksum covers every byte
			b[i] ^= 1
			if _, err := read2(b); err == nil {
				t.Fatalf("byte %d is not checked", i)
			}
			b[i] ^= 1
		}
		line := h.Append(nil, V1)
		if len(line) > 107 || !bytes.HasSuffix(line, []byte("\r\n")) {
			t.Errorf("%q", line)
		}
		if h.known() && !datagram {
			var proxy, family, src, dst string
			var sport, dport uint16
			_, err := fmt.Sscanf(string(line), "%s %s %s %s %d %d\r\n", &proxy, &family, &src, &dst, &sport, &dport)
			from, to := netip.AddrPortFrom(netip.MustParseAddr(src), sport),
				netip.AddrPortFrom(netip.MustParseAddr(dst), dport)
			if err != nil || from != h.Source || to != h.Destination {
				t.Errorf("%q: %v, want %v", line, err, h)
			}
		}
	})
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

// said is what a header has said.
type said struct {
	src, dst    netip.AddrPort
	datagram    bool
	id, service string
}

// read2 reads a header of version 2, all of b, as section 2.2 has it.
func read2(b []byte) (h said, err error) {
	if len(b) < 16 || string(b[:12]) != "\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a" || b[12] != 0x21 {
		return h, errors.New("not version 2")
	}
	if int(binary.BigEndian.Uint16(b[14:])) != len(b)-16 {
		return h, errors.New("length")
	}
	rest, size := b[16:], 0
	switch b[13] {
	case 0x00:
	case 0x11, 0x12:
		size = 4
	case 0x21, 0x22:
		size = 16
	default:
		return h, errors.New("family")
	}
	if len(rest) < 2*size+4 && size > 0 {
		return h, errors.New("addresses are cut off")
	}
	if size > 0 {
		h.datagram = b[13]&0xf == 2
		src, _ := netip.AddrFromSlice(rest[:size])
		dst, _ := netip.AddrFromSlice(rest[size : 2*size])
		h.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(rest[2*size:]))
		h.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(rest[2*size+2:]))
		rest = rest[2*size+4:]
	}
	checked := false
	for len(rest) > 0 {
		if len(rest) < 3 || len(rest)-3 < int(binary.BigEndian.Uint16(rest[1:])) {
			return h, errors.New("TLV is cut off")
		}
		value := rest[3 : 3+int(binary.BigEndian.Uint16(rest[1:]))]
		switch rest[0] {
		case 0x03:
			sum := binary.BigEndian.Uint32(value)
			whole := bytes.Clone(b)
			at := len(b) - len(rest) + 3
			copy(whole[at:at+4], make([]byte, 4))
			if checked = crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli)) == sum; !checked {
				return h, errors.New("checksum")
			}
		case 0x05:
			h.id = string(value)
		case 0xe0:
			h.service = string(value)
		}
		rest = rest[3+len(value):]
	}
	if !checked {
		return h, errors.New("no checksum")
	}
	return h, nil
}
