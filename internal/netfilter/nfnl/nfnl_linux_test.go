package nfnl

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAttributes: what is written is read again, whatever its length, and without flags.
func TestAttributes(t *testing.T) {
	for n := range 9 {
		value := bytes.Repeat([]byte{7}, n)
		b := AttrNested(AttrString(Attr(nil, 1|unix.NLA_F_NET_BYTEORDER, value), 2, "name"), 3, Attr(nil, 4, value))
		if len(b)%unix.NLA_ALIGNTO != 0 {
			t.Errorf("%d bytes are not aligned", len(b))
		}
		got, err := Attributes(b)
		if err != nil || len(got) != 3 || !bytes.Equal(got[1], value) || string(got[2]) != "name\x00" {
			t.Errorf("a value of %d bytes: %v, %v", n, got, err)
		}
		if inner := Nested(got[3], 4); !bytes.Equal(inner, value) {
			t.Errorf("nested: %v, want %v", inner, value)
		}
		if Nested(b, 5) != nil {
			t.Error("an attribute that is not there")
		}
	}
}

// FuzzEachAttr: a broken message is an error, and is never read beyond its end.
func FuzzEachAttr(f *testing.F) {
	f.Add(AttrString(nil, 1, "name"))
	f.Add([]byte{3, 0, 1, 0})
	f.Add([]byte{200, 0, 1, 0, 5})
	f.Fuzz(func(t *testing.T, b []byte) {
		read := 0
		err := EachAttr(b, func(_ uint16, value []byte) { read += unix.SizeofNlAttr + len(value) })
		if read > len(b) || err == nil && read == 0 && len(b) > 0 {
			t.Errorf("%d of %d bytes read, %v", read, len(b), err)
		}
	})
}
