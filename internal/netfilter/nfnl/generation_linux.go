package nfnl

import (
	"sync"

	"golang.org/x/sys/unix"
)

// account says which generations of nf_tables this process alone has made: all after first, up to last, in
// the network namespace in which it has written last.
var account struct {
	sync.Mutex
	namespace   namespace
	first, last uint32
}

// namespace is the file that stands for a network namespace.
type namespace struct{ dev, ino uint64 }

// Commit has send write one transaction of nf_tables, and notes the generation that it has made, so that
// [Alone] knows it. Transactions wait for each other, as they do in the kernel. send may be called by any goroutine.
// A generation that is made meanwhile by another program, or by what does not call Commit, is noticed: the kernel
// counts each transaction that changes anything. made is the generation that the transaction has made; 0: that is not
// known, or there is none.
func Commit(send func() error) (made uint32, err error) {
	account.Lock()
	defer account.Unlock()
	here, before := thisNamespace(), Generation()
	err = send()
	after := Generation()
	if here != account.namespace || before != account.last {
		account.first = before
	}
	if after != before && (err != nil || after != before+1) {
		account.first = after
	}
	account.namespace, account.last = here, after
	if err != nil || before == 0 || after != before+1 {
		return 0, err
	}
	return after, nil
}

// Alone returns the generation of nf_tables, and reports whether all transactions since an earlier one were those of
// Commit. 0 is no generation.
func Alone(since uint32) (now uint32, alone bool) {
	now = Generation()
	if since == 0 || now == 0 {
		return now, false
	}
	account.Lock()
	defer account.Unlock()
	ours := account.namespace == thisNamespace() && account.first <= since && since <= now && now <= account.last
	return now, ours || now == since
}

// thisNamespace returns the network namespace of the calling thread.
func thisNamespace() namespace {
	var st unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &st) != nil {
		return namespace{}
	}
	return namespace{st.Dev, st.Ino}
}

// Generation returns a number that changes with every transaction of nf_tables in this network
// namespace, of any program; 0 if it cannot be read.
func Generation() (n uint32) {
	_ = Request(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil, nil, func(m Value) {
		n = uint32(m.Find(unix.NFTA_GEN_ID).Uint())
	})
	return n
}
