package testbed

import (
	"encoding/binary"
	"hash/crc32"
)

// SCTPParam makes a parameter of a chunk, padded (RFC 9260 section 3.2.1). A chunk has the same form:
// its type is the high byte of kind, and its flags are the low one.
func SCTPParam(kind uint16, value ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// SCTPChunk makes a chunk.
func SCTPChunk(kind, flags byte, value ...byte) []byte {
	return SCTPParam(uint16(kind)<<8|uint16(flags), value...)
}

// SCTPInit makes an INIT (kind 1) or INIT ACK (kind 2) with parameters.
func SCTPInit(kind byte, tag uint32, params ...[]byte) []byte {
	value := binary.BigEndian.AppendUint32(nil, tag)
	value = append(value, 0, 1, 0, 0, 0, 10, 0, 10, 0, 0, 0, 1)
	last := 0
	for i, p := range params {
		if value = append(value, p...); i == len(params)-1 {
			last = len(p) - int(binary.BigEndian.Uint16(p[2:]))
		}
	}
	b := SCTPChunk(kind, 0, value...)
	binary.BigEndian.PutUint16(b[2:], uint16(4+len(value)-last)) // the last padding does not count
	return b
}

// SCTPData makes a DATA chunk that is a whole message.
func SCTPData(value ...byte) []byte {
	return SCTPChunk(0, 3, append([]byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9}, value...)...)
}

// SCTPPacket makes a packet from port 1000 to port 2000 with a valid checksum.
func SCTPPacket(tag uint32, chunks ...[]byte) []byte {
	b := []byte{1000 >> 8, 1000 & 255, 2000 >> 8, 2000 & 255, 0, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(b[4:], tag)
	for _, c := range chunks {
		b = append(b, c...)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}
