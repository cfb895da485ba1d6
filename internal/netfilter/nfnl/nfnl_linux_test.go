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
		name := String(b, 2)
		if got := Find(b, 1); !bytes.Equal(got, value) || name != "name" {
			t.Errorf("a value of %d bytes: %v, %q", n, got, name)
		}
		if inner := Find(Find(b, 3), 4); !bytes.Equal(inner, value) {
			t.Errorf("nested: %v, want %v", inner, value)
		}
		if Find(b, 5) != nil {
			t.Error("an attribute that is not there")
		}
	}
	if n := Uint([]byte{1, 2, 3}); n != 0x10203 {
		t.Errorf("Uint = %#x", n)
	}
}

// FuzzAttrs: a broken message is never read beyond its end.
func FuzzAttrs(f *testing.F) {
	f.Add(AttrString(nil, 1, "name"))
	f.Add([]byte{3, 0, 1, 0})
	f.Add([]byte{200, 0, 1, 0, 5})
	f.Fuzz(func(t *testing.T, b []byte) {
		read := 0
		for _, value := range Attrs(b) {
			read += unix.SizeofNlAttr + len(value)
		}
		if read > len(b) {
			t.Errorf("%d of %d bytes read", read, len(b))
		}
	})
}
