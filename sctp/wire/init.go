package wire

import (
	"encoding/binary"
	"slices"
)

// Parameters of INIT and INIT ACK that do not pass.
const (
	ParamIPv4         = 5      // RFC 9260 section 3.3.2.1
	ParamIPv6         = 6      // the same
	ParamHostname     = 11     // the same; deprecated
	ParamZeroChecksum = 0x8001 // RFC 9653
	ParamExtensions   = 0x8008 // RFC 5061 section 4.2.7; passes without ASCONF
	ParamAddIP        = 0xc001 // RFC 5061; not for INIT, but it carries an address
	ParamSetPrimary   = 0xc004 // RFC 5061 section 4.2.4
)

// Strip removes from a packet with an INIT or INIT ACK, in place, what would lead
// an endpoint past us or past what we understand: addresses other than the one in
// the IP header, changes of addresses later on (ASCONF), and packets without a
// checksum. What the two negotiate otherwise is theirs. It returns the packet,
// which has no valid checksum then; nil if its parameters are not whole.
func Strip(b []byte) []byte {
	chunk, _ := cut(b[HeaderSize:])
	if len(chunk) < initSize {
		return nil
	}
	end := HeaderSize + initSize // of what stays
	unpadded := end              // a chunk's length does not count the padding of its last parameter
	for from := b[end:]; len(from) > 0; {
		param, rest := cut(from)
		if param == nil {
			return nil
		}
		from = rest
		if param = filter(param); param != nil { // it lies at end or behind it
			unpadded = end + copy(b[end:], param)
			end += padded(len(param))
			clear(b[unpadded:end])
		}
	}
	binary.BigEndian.PutUint16(b[HeaderSize+2:], uint16(unpadded-HeaderSize))
	return b[:end]
}

// filter returns what passes of a parameter, nil if nothing does. It writes to it.
func filter(param []byte) []byte {
	switch binary.BigEndian.Uint16(param) {
	case ParamIPv4, ParamIPv6, ParamHostname, ParamZeroChecksum, ParamAddIP, ParamSetPrimary:
		return nil
	case ParamExtensions:
		passing := slices.DeleteFunc(param[chunkHeaderSize:], func(chunk byte) bool {
			return chunk == ChunkASCONF || chunk == ChunkASCONFAck
		})
		if len(passing) == 0 {
			return nil
		}
		binary.BigEndian.PutUint16(param[2:], uint16(chunkHeaderSize+len(passing)))
		return param[:chunkHeaderSize+len(passing)]
	}
	return param
}

// Abort returns an ABORT chunk in a packet without ports. reflected says that tag
// is one that the receiver has sent, not its own (RFC 9260 section 3.3.7).
func Abort(tag uint32, reflected bool) []byte {
	if reflected {
		return packet(tag, ChunkAbort, 1, nil)
	}
	return packet(tag, ChunkAbort, 0, nil)
}

// ShutdownComplete is the answer to a SHUTDOWN ACK of an association that does not exist
// any more (RFC 9260 section 8.4, rule 5).
func ShutdownComplete(tag uint32) []byte { return packet(tag, ChunkShutdownComplete, 1, nil) }

// CauseUnrecognized is the error cause "unrecognized chunk type" (RFC 9260
// section 3.3.10.6).
const CauseUnrecognized = 6

// Unrecognized returns a packet without ports that says that chunk, at most 1 KiB
// of it, is of a type that is not known here. It is how an endpoint without
// ASCONF refuses it, and it ends all further attempts (RFC 5061 section 5.1).
func Unrecognized(tag uint32, chunk []byte) []byte {
	chunk = chunk[:min(len(chunk), 1<<10)]
	cause := binary.BigEndian.AppendUint16(nil, CauseUnrecognized)
	cause = binary.BigEndian.AppendUint16(cause, uint16(chunkHeaderSize+len(chunk)))
	return packet(tag, ChunkError, 0, append(cause, chunk...))
}

// packet returns a packet of one chunk, without ports.
func packet(tag uint32, kind, flags byte, value []byte) []byte {
	length := chunkHeaderSize + len(value)
	b := make([]byte, HeaderSize+padded(length))
	binary.BigEndian.PutUint32(b[4:], tag)
	b[HeaderSize], b[HeaderSize+1] = kind, flags
	binary.BigEndian.PutUint16(b[HeaderSize+2:], uint16(length))
	copy(b[HeaderSize+chunkHeaderSize:], value)
	return b
}

// Find returns the first chunk of a type in a sound packet, or nil.
func Find(b []byte, kind Kinds) []byte {
	for rest := b[HeaderSize:]; len(rest) > 0; {
		chunk, next := cut(rest)
		if kinds[chunk[0]]&kind != 0 {
			return chunk
		}
		rest = next
	}
	return nil
}
