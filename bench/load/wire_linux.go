package load

import "encoding/binary"

// header is the beginning of each request to a Sized server: the length of the
// request, that of the wanted answer, and whether to end the connection after it.
const headerSize = 12

type header struct{ request, response, end uint32 }

func (h header) put(p []byte) {
	binary.LittleEndian.PutUint32(p, h.request)
	binary.LittleEndian.PutUint32(p[4:], h.response)
	binary.LittleEndian.PutUint32(p[8:], h.end)
}

func getHeader(p []byte) header {
	return header{binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]), binary.LittleEndian.Uint32(p[8:])}
}

// largest is the size of the largest request and answer.
const largest = 1 << 20
