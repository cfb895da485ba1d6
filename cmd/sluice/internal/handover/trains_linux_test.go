package handover

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWithoutTrains: to a program that does not know trains of datagrams go sockets that
// take none, and if it fails they take them again, as they do in one that knows them.
func TestWithoutTrains(t *testing.T) {
	w := newWorld(t, 2, 3)
	taken := func(e *Estate) (n int) {
		for _, l := range e.UDP.Listening() {
			for _, fd := range l.FDs {
				on, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO)
				if err != nil {
					t.Skipf("this kernel has no UDP_GRO: %v", err)
				}
				n += on
			}
		}
		return n
	}
	all := taken(w.old)
	if all == 0 {
		t.Fatal("trains are not taken at all")
	}
	var past []*Estate
	for _, test := range []struct {
		name       string
		old, fails bool
		want       int // of the sockets that take trains when they cross
	}{{"a new one", false, false, all}, {"an old one that fails", true, true, 0}, {"an old one", true, false, 0}} {
		during := -1
		w.pass = func(who string, message []byte) {
			switch kind(message[0]) {
			case helloMsg:
				if was := []byte(`"Trains":true`); test.old {
					if !bytes.Contains(message, was) {
						t.Errorf("hello is %s", message)
					}
					copy(message, bytes.Replace(message, was, []byte(`"Trains":null`), 1))
					binary.LittleEndian.PutUint32(message[1:], checksum(helloMsg, message[headSize:]))
				}
			case frozenMsg:
				if during = taken(w.old); test.fails {
					message[1] ^= 4 // the checksum
				}
			}
		}
		heir, seen, gave, took := w.attempt(none, 0)
		if failed := gave != nil; failed != test.fails || failed != (took != nil) {
			t.Fatalf("%s: gave: %v; took: %v; messages %v", test.name, gave, took, seen)
		}
		if during != test.want {
			t.Errorf("%s: %d sockets that take trains cross, want %d", test.name, during, test.want)
		}
		if !test.fails {
			w.old, heir = heir, w.old
		}
		if n := taken(w.old); n != all {
			t.Errorf("%s: afterwards %d sockets take trains, want %d", test.name, n, all)
		}
		w.works()
		if test.fails {
			heir.end(t)
		} else {
			past = append(past, heir) // its connections are another's
		}
	}
	for _, c := range w.conns {
		_ = c.Close()
	}
	eventually(t, "all connections have ended", func() bool { return w.old.TCP.Stats().Active == 0 })
	for _, e := range append(past, w.old) {
		e.end(t)
	}
}
