package nfnl

import (
	"bytes"
	"errors"
	"testing"
	"time"

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
		v, broken := read(b)
		name := v.Find(2).String()
		if got := v.Find(1).Bytes; !bytes.Equal(got, value) || name != "name" {
			t.Errorf("a value of %d bytes: %v, %q", n, got, name)
		}
		if inner := v.Find(3).Find(4).Bytes; !bytes.Equal(inner, value) {
			t.Errorf("nested: %v, want %v", inner, value)
		}
		if v.Find(5).Bytes != nil || *broken > 0 {
			t.Errorf("an attribute that is not there, or %d broken ones", *broken)
		}
	}
	if n := (Value{Bytes: []byte{1, 2, 3}}).Uint(); n != 0x10203 {
		t.Errorf("Uint = %#x", n)
	}
}

func read(b []byte) (Value, *int) {
	broken := new(int)
	return Value{b, broken}, broken
}

// TestNoAnswer: an answer that does not come is not waited for as long as the library would.
func TestNoAnswer(t *testing.T) {
	start := time.Now()
	err := Request(0, unix.NLMSG_NOOP, 0, unix.AF_UNSPEC, nil, nil, nil)
	if took := time.Since(start); !errors.Is(err, unix.EAGAIN) || took > 20*time.Second {
		t.Errorf("after %s: %v, want %v", took, err, unix.EAGAIN)
	}
}

// FuzzAttrs: a broken message is never read beyond its end, and is not taken for a whole one.
func FuzzAttrs(f *testing.F) {
	f.Add(AttrString(nil, 1, "name"))
	f.Add([]byte{3, 0, 1, 0})
	f.Add([]byte{200, 0, 1, 0, 5})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, broken := read(b)
		n := 0
		for _, value := range v.Attrs() {
			n = (n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1) + unix.SizeofNlAttr + len(value.Bytes)
		}
		if n > len(b) || *broken == 0 && n+unix.NLA_ALIGNTO <= len(b) {
			t.Errorf("%d of %d bytes read, %d attributes are broken", n, len(b), *broken)
		}
	})
}
