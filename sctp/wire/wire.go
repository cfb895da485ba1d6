package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// Chunk types (RFC 9260 section 3.2, RFC 5061, RFC 8260).
const (
	ChunkData             = 0
	ChunkInit             = 1
	ChunkInitAck          = 2
	ChunkAbort            = 6
	ChunkShutdown         = 7
	ChunkShutdownAck      = 8
	ChunkError            = 9
	ChunkCookieEcho       = 10
	ChunkCookieAck        = 11
	ChunkShutdownComplete = 14
	ChunkIData            = 64
	ChunkASCONFAck        = 0x80
	ChunkASCONF           = 0xc1
)

// Kinds is a set of the chunk types that decide what becomes of a packet.
type Kinds uint16

// The kinds of chunks.
const (
	KindInit Kinds = 1 << iota
	KindInitAck
	KindAbort
	KindShutdown
	KindShutdownAck
	KindShutdownComplete
	KindError
	KindCookieEcho
	KindCookieAck
	KindASCONF // or ASCONF ACK
)

// alone are the chunks that share a packet with no other (RFC 9260 section 3).
const alone = KindInit | KindInitAck | KindShutdownComplete

// kinds has the set of one chunk type, empty for those that only pass.
var kinds = [256]Kinds{
	ChunkInit: KindInit, ChunkInitAck: KindInitAck, ChunkAbort: KindAbort, ChunkError: KindError,
	ChunkShutdown: KindShutdown, ChunkShutdownAck: KindShutdownAck, ChunkShutdownComplete: KindShutdownComplete,
	ChunkCookieEcho: KindCookieEcho, ChunkCookieAck: KindCookieAck, ChunkASCONF: KindASCONF, ChunkASCONFAck: KindASCONF,
}

// Lengths in bytes.
const (
	HeaderSize      = 12 // ports, verification tag, checksum
	chunkHeaderSize = 4
	initSize        = chunkHeaderSize + 16 // INIT and INIT ACK without parameters
	dataSize        = chunkHeaderSize + 12
	iDataSize       = chunkHeaderSize + 16
)

// Fault is why a packet cannot be passed on, whatever its destination.
type Fault uint8

// The faults.
const (
	Sound       Fault = iota // nothing is wrong
	Malformed                // lengths, ports or tags that no packet has
	BadChecksum              // CRC32c is not that of the packet
	Bundled                  // a chunk that has to be alone is not
)

// Content is what has to be known of a packet to pass it on.
type Content struct {
	Source, Dest uint16 // ports
	Tag          uint32 // verification tag
	Kinds        Kinds
	InitTag      uint32 // initiate tag of an INIT or INIT ACK; else 0
	Reflected    bool   // the T bit of an ABORT or SHUTDOWN COMPLETE: the tag is the sender's own
	Messages     uint64 // ends of user messages
	Bytes        uint64 // of user data
}

// Parse reads an SCTP packet without its IP header. It looks at every chunk's
// header, and at nothing that only the endpoints need.
func Parse(b []byte) (Content, Fault) {
	var c Content
	if len(b) < HeaderSize+chunkHeaderSize || len(b)%4 != 0 {
		return c, Malformed
	}
	c.Source, c.Dest = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	c.Tag = binary.BigEndian.Uint32(b[4:])
	if c.Source == 0 || c.Dest == 0 {
		return c, Malformed
	}
	if binary.LittleEndian.Uint32(b[8:]) != checksum(b) {
		return c, BadChecksum
	}
	chunks := 0
	for rest := b[HeaderSize:]; len(rest) > 0; chunks++ {
		chunk, next := cut(rest)
		if chunk == nil || !c.add(chunk) {
			return c, Malformed
		}
		rest = next
	}
	switch {
	case c.Kinds&alone != 0 && chunks > 1:
		return c, Bundled
	case (c.Kinds&KindInit != 0) != (c.Tag == 0): // RFC 9260 section 8.5.1
		return c, Malformed
	}
	return c, Sound
}

// add notes a chunk and reports whether it is long enough for what it is.
func (c *Content) add(chunk []byte) bool {
	kind, flags := chunk[0], chunk[1]
	c.Kinds |= kinds[kind]
	switch kind {
	case ChunkInit, ChunkInitAck:
		if len(chunk) < initSize {
			return false
		}
		c.InitTag = binary.BigEndian.Uint32(chunk[4:])
		return c.InitTag != 0
	case ChunkAbort, ChunkShutdownComplete:
		c.Reflected = flags&1 != 0
	case ChunkData:
		return c.count(chunk, flags, dataSize)
	case ChunkIData:
		return c.count(chunk, flags, iDataSize)
	}
	return true
}

// count notes a chunk of user data, whose header has size bytes.
func (c *Content) count(chunk []byte, flags byte, size int) bool {
	if len(chunk) <= size { // RFC 9260 section 3.3.1: at least one byte of data
		return false
	}
	c.Messages += uint64(flags & 1) // the E bit
	c.Bytes += uint64(len(chunk) - size)
	return true
}

// cut splits the first chunk, or parameter, from what follows; both begin with
// a length at the same place and are padded to 4 bytes. nil: it is not whole.
func cut(b []byte) (first, rest []byte) {
	if len(b) < chunkHeaderSize {
		return nil, nil
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < chunkHeaderSize || padded(n) > len(b) {
		return nil, nil
	}
	return b[:n], b[padded(n):]
}

func padded(n int) int { return (n + 3) &^ 3 }

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	noChecksum = make([]byte, 4)
)

// checksum returns the CRC32c of a packet, taking its checksum field for zero
// (RFC 9260 section 6.8 and appendix A). It goes into the field low byte first.
func checksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:8])
	sum = crc32.Update(sum, castagnoli, noChecksum)
	return crc32.Update(sum, castagnoli, b[HeaderSize:])
}

// SetPorts gives a packet its ports and the checksum that they need.
func SetPorts(b []byte, source, dest uint16) {
	binary.BigEndian.PutUint16(b, source)
	binary.BigEndian.PutUint16(b[2:], dest)
	binary.LittleEndian.PutUint32(b[8:], checksum(b))
}
