package sctp

import (
	"encoding/binary"
	"hash/crc32"
)

// Chunk types (RFC 9260 section 3.2, RFC 5061, RFC 8260).
const (
	chunkData             = 0
	chunkInit             = 1
	chunkInitAck          = 2
	chunkAbort            = 6
	chunkShutdown         = 7
	chunkShutdownAck      = 8
	chunkError            = 9
	chunkCookieEcho       = 10
	chunkCookieAck        = 11
	chunkShutdownComplete = 14
	chunkIData            = 64
	chunkASCONFAck        = 0x80
	chunkASCONF           = 0xc1
)

// kinds is a set of the chunk types that decide what becomes of a packet.
type kinds uint16

const (
	kindInit kinds = 1 << iota
	kindInitAck
	kindAbort
	kindShutdown
	kindShutdownAck
	kindShutdownComplete
	kindError
	kindCookieEcho
	kindCookieAck
	kindASCONF // or ASCONF ACK
)

// alone are the chunks that share a packet with no other (RFC 9260 section 3).
const alone = kindInit | kindInitAck | kindShutdownComplete

// kindOf returns the set of one chunk type, empty for those that only pass.
func kindOf(chunk byte) kinds {
	switch chunk {
	case chunkInit:
		return kindInit
	case chunkInitAck:
		return kindInitAck
	case chunkAbort:
		return kindAbort
	case chunkShutdown:
		return kindShutdown
	case chunkShutdownAck:
		return kindShutdownAck
	case chunkShutdownComplete:
		return kindShutdownComplete
	case chunkError:
		return kindError
	case chunkCookieEcho:
		return kindCookieEcho
	case chunkCookieAck:
		return kindCookieAck
	case chunkASCONF, chunkASCONFAck:
		return kindASCONF
	}
	return 0
}

// Lengths in bytes.
const (
	headerSize      = 12 // ports, verification tag, checksum
	chunkHeaderSize = 4
	initSize        = chunkHeaderSize + 16 // INIT and INIT ACK without parameters
	dataSize        = chunkHeaderSize + 12
	iDataSize       = chunkHeaderSize + 16
)

// fault is why a packet cannot be passed on, whomever it is for.
type fault uint8

const (
	sound       fault = iota
	malformed         // lengths, ports or tags that no packet has
	badChecksum       // CRC32c is not that of the packet
	bundled           // a chunk that has to be alone is not
)

// content is what has to be known of a packet to pass it on.
type content struct {
	source, dest uint16 // ports
	tag          uint32 // verification tag
	kinds        kinds
	initTag      uint32 // initiate tag of an INIT or INIT ACK; else 0
	reflected    bool   // the T bit of an ABORT or SHUTDOWN COMPLETE: the tag is the sender's own
	messages     uint64 // ends of user messages
	bytes        uint64 // of user data
}

// parse reads an SCTP packet without its IP header. It looks at every chunk's
// header, and at nothing that only the endpoints need.
func parse(b []byte) (content, fault) {
	var c content
	if len(b) < headerSize+chunkHeaderSize || len(b)%4 != 0 {
		return c, malformed
	}
	c.source, c.dest = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	c.tag = binary.BigEndian.Uint32(b[4:])
	if c.source == 0 || c.dest == 0 {
		return c, malformed
	}
	if binary.LittleEndian.Uint32(b[8:]) != checksum(b) {
		return c, badChecksum
	}
	chunks := 0
	for rest := b[headerSize:]; len(rest) > 0; chunks++ {
		chunk, next := cut(rest)
		if chunk == nil || !c.add(chunk) {
			return c, malformed
		}
		rest = next
	}
	switch {
	case c.kinds&alone != 0 && chunks > 1:
		return c, bundled
	case (c.kinds&kindInit != 0) != (c.tag == 0): // RFC 9260 section 8.5.1
		return c, malformed
	}
	return c, sound
}

// add notes a chunk and reports whether it is long enough for what it is.
func (c *content) add(chunk []byte) bool {
	kind, flags := chunk[0], chunk[1]
	c.kinds |= kindOf(kind)
	switch kind {
	case chunkInit, chunkInitAck:
		if len(chunk) < initSize {
			return false
		}
		c.initTag = binary.BigEndian.Uint32(chunk[4:])
		return c.initTag != 0
	case chunkAbort, chunkShutdownComplete:
		c.reflected = flags&1 != 0
	case chunkData:
		return c.count(chunk, flags, dataSize)
	case chunkIData:
		return c.count(chunk, flags, iDataSize)
	}
	return true
}

// count notes a chunk of user data, whose header has size bytes.
func (c *content) count(chunk []byte, flags byte, size int) bool {
	if len(chunk) <= size { // RFC 9260 section 3.3.1: at least one byte of data
		return false
	}
	c.messages += uint64(flags & 1) // the E bit
	c.bytes += uint64(len(chunk) - size)
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
	return crc32.Update(sum, castagnoli, b[headerSize:])
}

// address gives a packet its ports and the checksum that they need.
func address(b []byte, source, dest uint16) {
	binary.BigEndian.PutUint16(b, source)
	binary.BigEndian.PutUint16(b[2:], dest)
	binary.LittleEndian.PutUint32(b[8:], checksum(b))
}
