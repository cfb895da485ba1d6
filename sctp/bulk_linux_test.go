package sctp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

var bulkSize = flag.Int64("bulk", 0, "bytes that TestBulk sends each way; 0 is 8 MiB, or 3 MiB in short mode")

const (
	bulkStreams = 32
	bulkMax     = 256 << 10 // largest message
	bulkHeader  = 12
)

// bulkMessage returns the n-th message of a stream: of random length and PPID, and with
// content that no other has.
func bulkMessage(direction, stream uint16, n uint64) message {
	var seed [32]byte
	binary.BigEndian.PutUint16(seed[:], direction)
	binary.BigEndian.PutUint16(seed[2:], stream)
	binary.BigEndian.PutUint64(seed[4:], n)
	r := rand.NewChaCha8(seed)
	size := uint64(bulkMax - bulkHeader)
	if r.Uint64()%2 == 0 {
		size = 1000 // half of them are small
	}
	m := message{stream: stream, ppid: uint32(r.Uint64()), data: make([]byte, bulkHeader+r.Uint64()%(size+1))}
	_, _ = r.Read(m.data)
	copy(m.data, seed[:bulkHeader])
	return m
}

// pour sends messages on all streams until size bytes are sent, and then says on
// each that this is the end.
func pour(p peer, direction uint16, size int64) error {
	var sent [bulkStreams]uint64
	r := rand.New(rand.NewPCG(uint64(direction), 1))
	for left := size; left > 0; {
		s := uint16(r.IntN(bulkStreams))
		m := bulkMessage(direction, s, sent[s])
		sent[s]++
		if err := p.send(m); err != nil {
			return err
		}
		left -= int64(len(m.data))
	}
	for s := range uint16(bulkStreams) {
		if err := p.send(message{stream: s, data: []byte("end")}); err != nil {
			return err
		}
	}
	return nil
}

// drink expects what pour sends: every message of each stream, whole, in order and
// with its PPID.
func drink(t *testing.T, p peer, direction uint16) (received int64) {
	var got [bulkStreams]uint64
	for ends := 0; ends < bulkStreams; {
		m, err := p.receive()
		if err != nil {
			t.Errorf("direction %d: after %d bytes: %v", direction, received, err)
			return received
		}
		if string(m.data) == "end" {
			ends++
			continue
		}
		want := bulkMessage(direction, m.stream, got[m.stream])
		if got[m.stream]++; m.ppid != want.ppid || !bytes.Equal(m.data, want.data) {
			t.Errorf("direction %d: message %d of stream %d: PPID %d, %d bytes; want %d, %d bytes, or others",
				direction, got[m.stream], m.stream, m.ppid, len(m.data), want.ppid, len(want.data))
			return received
		}
		received += int64(len(m.data))
	}
	return received
}

// Many streams with messages of all sizes go both ways at once: nothing is lost,
// changed, or in another order within its stream.
func TestBulk(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 1}, false, settings{})
		client, server := l.associate()
		size := cmp.Or(*bulkSize, map[bool]int64{false: 8 << 20, true: 3 << 20}[testing.Short()])
		var all sync.WaitGroup
		for _, way := range []struct {
			direction uint16
			from, to  peer
		}{{1, client, server}, {2, server, client}} {
			all.Go(func() {
				if err := pour(way.from, way.direction, size); err != nil {
					t.Errorf("direction %d: %v", way.direction, err)
				}
			})
			all.Go(func() {
				if n := drink(t, way.to, way.direction); n < size {
					t.Errorf("direction %d: %d bytes arrived, want %d", way.direction, n, size)
				}
			})
		}
		all.Wait()
		s := l.stats()
		t.Logf("%+v", s)
		if s.BadChecksum+s.Malformed+s.BadTag+s.Unexpected != 0 {
			t.Errorf("some packets were dropped: %+v", s)
		}
		report(t, client.shutdown())
		l.eventually("the association is over", func(s Stats) bool { return s.Active == 0 })
	})
}
