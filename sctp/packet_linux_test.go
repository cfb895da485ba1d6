package sctp

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// chunk makes a chunk or a parameter of a 16-bit type: for a chunk, the low byte
// of which is its flags.
func tlv(kind uint16, value ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	b = append(b, value...)
	return append(b, make([]byte, padded(len(b))-len(b))...)
}

// chunk makes a chunk.
func chunk(kind, flags byte, value ...byte) []byte {
	return tlv(uint16(kind)<<8|uint16(flags), value...)
}

// initChunk makes an INIT or INIT ACK with parameters.
func initChunk(kind byte, tag uint32, params ...[]byte) []byte {
	value := binary.BigEndian.AppendUint32(nil, tag)
	value = append(value, 0, 1, 0, 0, 0, 10, 0, 10, 0, 0, 0, 1)
	last := 0
	for i, p := range params {
		if value = append(value, p...); i == len(params)-1 {
			last = len(p) - int(binary.BigEndian.Uint16(p[2:]))
		}
	}
	b := chunk(kind, 0, value...)
	binary.BigEndian.PutUint16(b[2:], uint16(4+len(value)-last)) // the last padding does not count
	return b
}

// data makes a DATA chunk that is a whole message.
func data(value ...byte) []byte {
	return chunk(chunkData, 3, append([]byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9}, value...)...)
}

// packet makes a packet from port 1000 to port 2000.
func packet(tag uint32, chunks ...[]byte) []byte {
	b := make([]byte, headerSize)
	binary.BigEndian.PutUint32(b[4:], tag)
	for _, c := range chunks {
		b = append(b, c...)
	}
	address(b, 1000, 2000)
	return b
}

// spoilt returns a copy of a packet with one byte changed and, if sealed, the
// checksum made good.
func spoilt(b []byte, at int, to byte, sealed bool) []byte {
	b = bytes.Clone(b)
	b[at] = to
	if sealed {
		binary.LittleEndian.PutUint32(b[8:], checksum(b))
	}
	return b
}

func TestParse(t *testing.T) {
	plain := packet(7, data('a', 'b', 'c'))
	for _, c := range []struct {
		name string
		b    []byte
		want content
		err  fault
	}{
		{"data", plain, content{kinds: 0, tag: 7, messages: 1, bytes: 3}, sound},
		{"bundle", packet(7, chunk(chunkCookieEcho, 0, 1), data(1), data(1, 2)), content{tag: 7, kinds: kindCookieEcho, messages: 2, bytes: 3}, sound},
		{"fragment of a message", packet(7, chunk(chunkData, 2, make([]byte, 16)...)), content{tag: 7, bytes: 4}, sound},
		{"I-DATA", packet(7, chunk(chunkIData, 1, make([]byte, 20)...)), content{tag: 7, bytes: 4, messages: 1}, sound},
		{"init", packet(0, initChunk(chunkInit, 9)), content{kinds: kindInit, initTag: 9}, sound},
		{"init ack", packet(4, initChunk(chunkInitAck, 9, tlv(7, 1, 2, 3))), content{tag: 4, kinds: kindInitAck, initTag: 9}, sound},
		{"abort, reflected", packet(4, chunk(chunkAbort, 1)), content{tag: 4, kinds: kindAbort, reflected: true}, sound},
		{"unknown chunk", packet(4, chunk(200, 0, 1, 2)), content{tag: 4}, sound},
		{"shutdown and error", packet(4, chunk(chunkShutdown, 0, 1, 2, 3, 4), chunk(chunkError, 0)), content{tag: 4, kinds: kindShutdown | kindError}, sound},

		{"nothing", nil, content{}, malformed},
		{"only a header", plain[:headerSize], content{}, malformed},
		{"cut short", plain[:len(plain)-4], content{}, badChecksum},
		{"not a multiple of 4", plain[:len(plain)-1], content{}, malformed},
		{"no source port", packet2(0, 1), content{}, malformed},
		{"no destination port", packet2(1, 0), content{}, malformed},
		{"a changed byte", spoilt(plain, 20, 99, false), content{}, badChecksum},
		{"no checksum", spoilt(spoilt(spoilt(spoilt(plain, 8, 0, false), 9, 0, false), 10, 0, false), 11, 0, false), content{}, badChecksum},
		{"chunk longer than the packet", spoilt(plain, headerSize+3, 200, true), content{}, malformed},
		{"chunk of no length", spoilt(plain, headerSize+3, 0, true), content{}, malformed},
		{"data without data", packet(7, chunk(chunkData, 3, make([]byte, 12)...)), content{}, malformed},
		{"short init", packet(0, chunk(chunkInit, 0, 0, 0, 0, 1)), content{}, malformed},
		{"init with tag 0", packet(0, initChunk(chunkInit, 0)), content{}, malformed},
		{"init with a verification tag", packet(1, initChunk(chunkInit, 9)), content{}, malformed},
		{"data without a verification tag", packet(0, data(1)), content{}, malformed},
		{"init and more", packet(0, initChunk(chunkInit, 9), data(1)), content{}, bundled},
		{"init ack and more", packet(1, chunk(chunkCookieAck, 0), initChunk(chunkInitAck, 9)), content{}, bundled},
		{"shutdown complete and more", packet(1, chunk(chunkShutdownComplete, 0), data(1)), content{}, bundled},
		{"two inits", packet(0, initChunk(chunkInit, 9), initChunk(chunkInit, 9)), content{}, bundled},
	} {
		got, err := parse(c.b)
		if err != c.err {
			t.Errorf("%s: fault %d, want %d", c.name, err, c.err)
			continue
		}
		if c.want.source, c.want.dest = 1000, 2000; err == sound && got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func packet2(source, dest uint16) []byte {
	b := packet(7, data(1))
	address(b, source, dest)
	return b
}

// The sum of 32 bytes of zeros is an example of RFC 3720, appendix B.4.
func TestChecksum(t *testing.T) {
	b := make([]byte, 32)
	for range 2 {
		if got := checksum(b); got != 0x8a9136aa {
			t.Errorf("checksum %#x, want 0x8a9136aa", got)
		}
		copy(b[8:], "what") // the field itself is not part of the sum
	}
}

func TestStrip(t *testing.T) {
	cookie, ecn := tlv(7, 1, 2, 3, 4, 5), tlv(0x8000)
	v4, v6, host := tlv(paramIPv4, 10, 0, 0, 1), tlv(paramIPv6, make([]byte, 16)...), tlv(paramHostname, 'h', 0)
	zero, primary := tlv(paramZeroChecksum, 0, 0, 0, 1), tlv(paramSetPrimary, 1, 2, 3, 4)
	all := tlv(paramExtensions, 0x82, chunkASCONF, 0xc0, chunkASCONFAck, 0x40)
	for _, c := range []struct {
		name      string
		have      [][]byte
		want      [][]byte
		malformed bool
	}{
		{name: "nothing"},
		{name: "only what passes", have: [][]byte{ecn, cookie}, want: [][]byte{ecn, cookie}},
		{name: "addresses", have: [][]byte{v4, cookie, v6, v4, ecn, host}, want: [][]byte{cookie, ecn}},
		{name: "the last one goes", have: [][]byte{cookie, v4}, want: [][]byte{cookie}},
		{name: "only addresses", have: [][]byte{v4, v6}},
		{name: "set primary and zero checksum", have: [][]byte{primary, ecn, zero}, want: [][]byte{ecn}},
		{name: "extensions", have: [][]byte{v6, all, cookie}, want: [][]byte{tlv(paramExtensions, 0x82, 0xc0, 0x40), cookie}},
		{name: "no extension left", have: [][]byte{tlv(paramExtensions, chunkASCONF, chunkASCONFAck), ecn}, want: [][]byte{ecn}},
		{name: "parameter too long", have: [][]byte{spoilt(ecn, 3, 40, false)}, malformed: true},
		{name: "parameter too short", have: [][]byte{spoilt(ecn, 3, 3, false)}, malformed: true},
	} {
		for _, kind := range []byte{chunkInit, chunkInitAck} {
			tag := uint32(kind) - 1
			got := strip(packet(tag, initChunk(kind, 9, c.have...)))
			if c.malformed {
				if got != nil {
					t.Errorf("%s: %x", c.name, got)
				}
				continue
			}
			address(got, 1000, 2000)
			if want := packet(tag, initChunk(kind, 9, c.want...)); !bytes.Equal(got, want) {
				t.Errorf("%s:\n%x, want\n%x", c.name, got, want)
			}
		}
	}
}

func TestOwnPackets(t *testing.T) {
	asconf := chunk(chunkASCONF, 0, 1, 2, 3, 4, 5)
	long := chunk(chunkASCONF, 0, make([]byte, 4000)...)
	for _, c := range []struct {
		name string
		b    []byte
		want []byte
	}{
		{"abort", abort(5, false), packet(5, chunk(chunkAbort, 0))},
		{"reflected abort", abort(5, true), packet(5, chunk(chunkAbort, 1))},
		{"shutdown complete", shutdownComplete(5), packet(5, chunk(chunkShutdownComplete, 1))},
		{"error", unrecognized(5, asconf[:9]), packet(5, chunk(chunkError, 0, tlv(causeUnrecognized, asconf[:9]...)[:13]...))},
		{"long error", unrecognized(5, long), packet(5, chunk(chunkError, 0, tlv(causeUnrecognized, long[:1024]...)...))},
	} {
		address(c.b, 1000, 2000)
		if !bytes.Equal(c.b, c.want) {
			t.Errorf("%s: %x, want %x", c.name, c.b, c.want)
		}
	}
	if got := find(packet(1, data(1), asconf, data(2)), kindASCONF); !bytes.Equal(got, asconf[:9]) {
		t.Errorf("find = %x", got)
	}
}

// Whatever comes, parse and strip neither panic nor write beyond the packet, and
// what they let pass is sound again.
func FuzzParse(f *testing.F) {
	f.Add(packet(7, data('a', 'b')), false)
	f.Add(packet(0, initChunk(chunkInit, 9, tlv(paramIPv4, 1, 2, 3, 4), tlv(paramExtensions, 0x82, chunkASCONF))), false)
	f.Add(packet(3, initChunk(chunkInitAck, 9, tlv(7, 1, 2, 3), tlv(paramHostname, 1))), false)
	f.Add(packet(3, chunk(chunkASCONF, 0, 1, 2, 3, 4), chunk(chunkAbort, 1)), true)
	f.Fuzz(func(t *testing.T, in []byte, seal bool) {
		b := make([]byte, len(in)+8)
		copy(b, in)
		copy(b[len(in):], "8 beyond")
		b = b[:len(in)]
		if seal && len(b) >= headerSize {
			binary.LittleEndian.PutUint32(b[8:], checksum(b))
		}
		c, err := parse(b)
		if err != sound {
			return
		}
		if asconf := find(b, kindASCONF); (asconf != nil) != (c.kinds&kindASCONF != 0) {
			t.Fatal("find and parse see different chunks")
		} else if asconf != nil {
			answer := unrecognized(c.tag, asconf)
			address(answer, c.dest, c.source)
			if _, err := parse(answer); err != sound && c.tag != 0 {
				t.Fatalf("our answer has fault %d: %x", err, answer)
			}
		}
		if c.kinds&(kindInit|kindInitAck) != 0 {
			if b = strip(b); b == nil {
				return
			}
		}
		address(b, 40000, 50000)
		again, err := parse(b)
		c.source, c.dest = 40000, 50000
		if err != sound || again != c {
			t.Fatalf("passed on: fault %d, %+v, want %+v", err, again, c)
		}
		if len(b) > len(in) || string(b[:cap(b)][len(in):len(in)+8]) != "8 beyond" {
			t.Fatal("wrote beyond the packet")
		}
		if c.initTag != 0 {
			for rest := b[headerSize+initSize:]; len(rest) > 0; {
				param, next := cut(rest)
				if param == nil {
					t.Fatalf("a parameter is not whole: %x", b)
				}
				switch binary.BigEndian.Uint16(param) {
				case paramIPv4, paramIPv6, paramHostname, paramSetPrimary, paramZeroChecksum, paramAddIP:
					t.Fatalf("parameter %x passed", param)
				}
				rest = next
			}
		}
	})
}

func TestParseAllocatesNothing(t *testing.T) {
	b := packet(7, chunk(3, 0, make([]byte, 12)...), data(make([]byte, 1400)...))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := parse(b); err != sound {
			t.Fatal("not sound")
		}
		address(b, 1000, 2000)
	}); n != 0 {
		t.Errorf("%v allocations a packet, want none", n)
	}
}
