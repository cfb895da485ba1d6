package nft

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// page is how many elements of a dynamic set change in one transaction, so that none keeps others waiting for long.
const page = 4096

// Client is an element of a dynamic set.
type Client struct {
	Key  string
	Left time.Duration // until it times out
}

// Read returns the elements of a dynamic set.
func (t *Table) Read(name string) ([]Client, error) {
	list, err := t.read(context.Background(), name)
	out := make([]Client, len(list))
	for i, e := range list {
		out[i] = Client{e.Key, e.left}
	}
	return out, err
}

// Expel removes elements from a dynamic set, of which some may not be there.
func (t *Table) Expel(name string, keys map[string]bool) error {
	present, err := t.read(context.Background(), name)
	if err != nil {
		return err
	}
	present = slices.DeleteFunc(present, func(e timed) bool { return !keys[e.Key] })
	for list := range slices.Chunk(present, page) {
		b := t.batch()
		b.expel(t.named[name], list)
		if err := t.commit(b); err != nil {
			return err
		}
	}
	return nil
}

// Insert adds elements of different keys to a dynamic set, with a timeout of which a part is left, or replaces them.
// The first ones come first: what a full set has no room for is left out.
func (t *Table) Insert(name string, timeout time.Duration, list []Client) error {
	for size := page; len(list) > 0; {
		size = min(size, len(list))
		come := make([]timed, size)
		for i, c := range list[:size] {
			come[i] = timed{Element{Key: c.Key}, timeout, c.Left}
		}
		b, s := t.batch(), t.named[name]
		b.expel(s, come)
		b.elements(unix.NFT_MSG_NEWSETELEM, s, slices.Values(come))
		t.counters().Transactions.Add(1)
		switch err := b.send(); {
		case err == nil:
			list = list[size:]
		case errors.Is(err, syscall.ENFILE) && size == 1:
			return nil
		case errors.Is(err, syscall.ENFILE): // there is room for fewer
			size /= 2
		default:
			t.counters().Failures.Add(1)
			return b.failed("write", err)
		}
	}
	return nil
}

// expel deletes elements that may have expired meanwhile, or may not be there, which the kernel would refuse: what is
// added first is there. To add what is there changes nothing (nft_add_set_elem).
func (b *batch) expel(s *set, list []timed) {
	plain := func(yield func(timed) bool) {
		for _, e := range list {
			if !yield(timed{Element: Element{Key: e.Key}}) {
				return
			}
		}
	}
	b.elements(unix.NFT_MSG_NEWSETELEM, s, plain)
	b.elements(unix.NFT_MSG_DELSETELEM, s, plain)
}
