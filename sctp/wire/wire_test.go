package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// spoilt returns a copy of a packet with one byte changed and, if sealed, a valid checksum.
func spoilt(b []byte, at int, to byte, sealed bool) []byte {
	b = bytes.Clone(b)
	b[at] = to
	if sealed {
		binary.LittleEndian.PutUint32(b[8:], checksum(b))
	}
	return b
}

func TestParse(t *testing.T) {
	plain := testbed.SCTPPacket(7, testbed.SCTPData('a', 'b', 'c'))
	for _, c := range []struct {
		name string
		b    []byte
		want Content
		err  Fault
	}{
		{"data", plain, Content{Kinds: 0, Tag: 7, Messages: 1, Bytes: 3}, Sound},
		{"bundle", testbed.SCTPPacket(7, testbed.SCTPChunk(ChunkCookieEcho, 0, 1), testbed.SCTPData(1), testbed.SCTPData(1, 2)), Content{Tag: 7, Kinds: KindCookieEcho, Messages: 2, Bytes: 3}, Sound},
		{"fragment of a message", testbed.SCTPPacket(7, testbed.SCTPChunk(ChunkData, 2, make([]byte, 16)...)), Content{Tag: 7, Bytes: 4}, Sound},
		{"I-DATA", testbed.SCTPPacket(7, testbed.SCTPChunk(ChunkIData, 1, make([]byte, 20)...)), Content{Tag: 7, Bytes: 4, Messages: 1}, Sound},
		{"init", testbed.SCTPPacket(0, testbed.SCTPInit(ChunkInit, 9)), Content{Kinds: KindInit, InitTag: 9}, Sound},
		{"init ack", testbed.SCTPPacket(4, testbed.SCTPInit(ChunkInitAck, 9, testbed.SCTPParam(7, 1, 2, 3))), Content{Tag: 4, Kinds: KindInitAck, InitTag: 9}, Sound},
		{"abort, reflected", testbed.SCTPPacket(4, testbed.SCTPChunk(ChunkAbort, 1)), Content{Tag: 4, Kinds: KindAbort, Reflected: true}, Sound},
		{"unknown chunk", testbed.SCTPPacket(4, testbed.SCTPChunk(200, 0, 1, 2)), Content{Tag: 4}, Sound},
		{"shutdown and error", testbed.SCTPPacket(4, testbed.SCTPChunk(ChunkShutdown, 0, 1, 2, 3, 4), testbed.SCTPChunk(ChunkError, 0)), Content{Tag: 4, Kinds: KindShutdown | KindError}, Sound},

		{"nothing", nil, Content{}, Malformed},
		{"only a header", plain[:HeaderSize], Content{}, Malformed},
		{"cut short", plain[:len(plain)-4], Content{}, BadChecksum},
		{"not a multiple of 4", plain[:len(plain)-1], Content{}, Malformed},
		{"no source port", packet2(0, 1), Content{}, Malformed},
		{"no destination port", packet2(1, 0), Content{}, Malformed},
		{"a changed byte", spoilt(plain, 20, 99, false), Content{}, BadChecksum},
		{"no checksum", spoilt(spoilt(spoilt(spoilt(plain, 8, 0, false), 9, 0, false), 10, 0, false), 11, 0, false), Content{}, BadChecksum},
		{"chunk longer than the packet", spoilt(plain, HeaderSize+3, 200, true), Content{}, Malformed},
		{"chunk of no length", spoilt(plain, HeaderSize+3, 0, true), Content{}, Malformed},
		{"data without data", testbed.SCTPPacket(7, testbed.SCTPChunk(ChunkData, 3, make([]byte, 12)...)), Content{}, Malformed},
		{"short init", testbed.SCTPPacket(0, testbed.SCTPChunk(ChunkInit, 0, 0, 0, 0, 1)), Content{}, Malformed},
		{"init with tag 0", testbed.SCTPPacket(0, testbed.SCTPInit(ChunkInit, 0)), Content{}, Malformed},
		{"init with a verification tag", testbed.SCTPPacket(1, testbed.SCTPInit(ChunkInit, 9)), Content{}, Malformed},
		{"data without a verification tag", testbed.SCTPPacket(0, testbed.SCTPData(1)), Content{}, Malformed},
		{"init and more", testbed.SCTPPacket(0, testbed.SCTPInit(ChunkInit, 9), testbed.SCTPData(1)), Content{}, Bundled},
		{"init ack and more", testbed.SCTPPacket(1, testbed.SCTPChunk(ChunkCookieAck, 0), testbed.SCTPInit(ChunkInitAck, 9)), Content{}, Bundled},
		{"shutdown complete and more", testbed.SCTPPacket(1, testbed.SCTPChunk(ChunkShutdownComplete, 0), testbed.SCTPData(1)), Content{}, Bundled},
		{"two inits", testbed.SCTPPacket(0, testbed.SCTPInit(ChunkInit, 9), testbed.SCTPInit(ChunkInit, 9)), Content{}, Bundled},
	} {
		got, err := Parse(c.b)
		if err != c.err {
			t.Errorf("%s: Fault %d, want %d", c.name, err, c.err)
			continue
		}
		if c.want.Source, c.want.Dest = 1000, 2000; err == Sound && got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func packet2(source, dest uint16) []byte {
	b := testbed.SCTPPacket(7, testbed.SCTPData(1))
	SetPorts(b, source, dest)
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
	cookie, ecn := testbed.SCTPParam(7, 1, 2, 3, 4, 5), testbed.SCTPParam(0x8000)
	v4, v6, host := testbed.SCTPParam(ParamIPv4, 10, 0, 0, 1), testbed.SCTPParam(ParamIPv6, make([]byte, 16)...), testbed.SCTPParam(ParamHostname, 'h', 0)
	zero, primary := testbed.SCTPParam(ParamZeroChecksum, 0, 0, 0, 1), testbed.SCTPParam(ParamSetPrimary, 1, 2, 3, 4)
	all := testbed.SCTPParam(ParamExtensions, 0x82, ChunkASCONF, 0xc0, ChunkASCONFAck, 0x40)
	for _, c := range []struct {
		name      string
		have      [][]byte
		want      [][]byte
		Malformed bool
	}{
		{name: "nothing"},
		{name: "only what passes", have: [][]byte{ecn, cookie}, want: [][]byte{ecn, cookie}},
		{name: "addresses", have: [][]byte{v4, cookie, v6, v4, ecn, host}, want: [][]byte{cookie, ecn}},
		{name: "the last one goes", have: [][]byte{cookie, v4}, want: [][]byte{cookie}},
		{name: "only addresses", have: [][]byte{v4, v6}},
		{name: "set primary and zero checksum", have: [][]byte{primary, ecn, zero}, want: [][]byte{ecn}},
		{name: "extensions", have: [][]byte{v6, all, cookie}, want: [][]byte{testbed.SCTPParam(ParamExtensions, 0x82, 0xc0, 0x40), cookie}},
		{name: "no extension left", have: [][]byte{testbed.SCTPParam(ParamExtensions, ChunkASCONF, ChunkASCONFAck), ecn}, want: [][]byte{ecn}},
		{name: "parameter too long", have: [][]byte{spoilt(ecn, 3, 40, false)}, Malformed: true},
		{name: "parameter too short", have: [][]byte{spoilt(ecn, 3, 3, false)}, Malformed: true},
	} {
		for _, kind := range []byte{ChunkInit, ChunkInitAck} {
			tag := uint32(kind) - 1
			got := Strip(testbed.SCTPPacket(tag, testbed.SCTPInit(kind, 9, c.have...)))
			if c.Malformed {
				if got != nil {
					t.Errorf("%s: %x", c.name, got)
				}
				continue
			}
			SetPorts(got, 1000, 2000)
			if want := testbed.SCTPPacket(tag, testbed.SCTPInit(kind, 9, c.want...)); !bytes.Equal(got, want) {
				t.Errorf("%s:\n%x, want\n%x", c.name, got, want)
			}
		}
	}
}

func TestOwnPackets(t *testing.T) {
	asconf := testbed.SCTPChunk(ChunkASCONF, 0, 1, 2, 3, 4, 5)
	long := testbed.SCTPChunk(ChunkASCONF, 0, make([]byte, 4000)...)
	for _, c := range []struct {
		name string
		b    []byte
		want []byte
	}{
		{"abort", Abort(5, false), testbed.SCTPPacket(5, testbed.SCTPChunk(ChunkAbort, 0))},
		{"reflected abort", Abort(5, true), testbed.SCTPPacket(5, testbed.SCTPChunk(ChunkAbort, 1))},
		{"shutdown complete", ShutdownComplete(5), testbed.SCTPPacket(5, testbed.SCTPChunk(ChunkShutdownComplete, 1))},
		{"error", Unrecognized(5, asconf[:9]), testbed.SCTPPacket(5, testbed.SCTPChunk(ChunkError, 0, testbed.SCTPParam(CauseUnrecognized, asconf[:9]...)[:13]...))},
		{"long error", Unrecognized(5, long), testbed.SCTPPacket(5, testbed.SCTPChunk(ChunkError, 0, testbed.SCTPParam(CauseUnrecognized, long[:1024]...)...))},
	} {
		SetPorts(c.b, 1000, 2000)
		if !bytes.Equal(c.b, c.want) {
			t.Errorf("%s: %x, want %x", c.name, c.b, c.want)
		}
	}
	if got := Find(testbed.SCTPPacket(1, testbed.SCTPData(1), asconf, testbed.SCTPData(2)), KindASCONF); !bytes.Equal(got, asconf[:9]) {
		t.Errorf("find = %x", got)
	}
}

// Whatever comes, parse and strip neither panic nor write beyond the packet, and
// what they let pass is Sound again.
func FuzzParse(f *testing.F) {
	f.Add(testbed.SCTPPacket(7, testbed.SCTPData('a', 'b')), false)
	f.Add(testbed.SCTPPacket(0, testbed.SCTPInit(ChunkInit, 9, testbed.SCTPParam(ParamIPv4, 1, 2, 3, 4), testbed.SCTPParam(ParamExtensions, 0x82, ChunkASCONF))), false)
	f.Add(testbed.SCTPPacket(3, testbed.SCTPInit(ChunkInitAck, 9, testbed.SCTPParam(7, 1, 2, 3), testbed.SCTPParam(ParamHostname, 1))), false)
	f.Add(testbed.SCTPPacket(3, testbed.SCTPChunk(ChunkASCONF, 0, 1, 2, 3, 4), testbed.SCTPChunk(ChunkAbort, 1)), true)
	f.Fuzz(func(t *testing.T, in []byte, seal bool) {
		b := make([]byte, len(in)+8)
		copy(b, in)
		copy(b[len(in):], "8 beyond")
		b = b[:len(in)]
		if seal && len(b) >= HeaderSize {
			binary.LittleEndian.PutUint32(b[8:], checksum(b))
		}
		c, err := Parse(b)
		if err != Sound {
			return
		}
		if asconf := Find(b, KindASCONF); (asconf != nil) != (c.Kinds&KindASCONF != 0) {
			t.Fatal("find and parse see different chunks")
		} else if asconf != nil {
			answer := Unrecognized(c.Tag, asconf)
			SetPorts(answer, c.Dest, c.Source)
			if _, err := Parse(answer); err != Sound && c.Tag != 0 {
				t.Fatalf("our answer has Fault %d: %x", err, answer)
			}
		}
		if c.Kinds&(KindInit|KindInitAck) != 0 {
			if b = Strip(b); b == nil {
				return
			}
		}
		SetPorts(b, 40000, 50000)
		again, err := Parse(b)
		c.Source, c.Dest = 40000, 50000
		if err != Sound || again != c {
			t.Fatalf("passed on: Fault %d, %+v, want %+v", err, again, c)
		}
		if len(b) > len(in) || string(b[:cap(b)][len(in):len(in)+8]) != "8 beyond" {
			t.Fatal("wrote beyond the packet")
		}
		if c.InitTag != 0 {
			for rest := b[HeaderSize+initSize:]; len(rest) > 0; {
				param, next := cut(rest)
				if param == nil {
					t.Fatalf("a parameter is not whole: %x", b)
				}
				switch binary.BigEndian.Uint16(param) {
				case ParamIPv4, ParamIPv6, ParamHostname, ParamSetPrimary, ParamZeroChecksum, ParamAddIP:
					t.Fatalf("parameter %x passed", param)
				}
				rest = next
			}
		}
	})
}

func TestParseAllocatesNothing(t *testing.T) {
	b := testbed.SCTPPacket(7, testbed.SCTPChunk(3, 0, make([]byte, 12)...), testbed.SCTPData(make([]byte, 1400)...))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := Parse(b); err != Sound {
			t.Fatal("not Sound")
		}
		SetPorts(b, 1000, 2000)
	}); n != 0 {
		t.Errorf("%v allocations a packet, want none", n)
	}
}
