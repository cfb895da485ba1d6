package nfnl

import (
	"sync"

	"golang.org/x/sys/unix"
)

// account says which generations of nf_tables this process alone has made: all after first, up to last, in
// the network namespace in which it has written last.
var account struct {
	sync.Mutex
	namespace   uint64 // its cookie
	first, last uint32
}

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

// thisNamespace returns the cookie of the network namespace of the calling thread, which the kernel gives to no other,
// unlike the inode of one that has ended (SO_NETNS_COOKIE, Linux 5.14; 0 before that, where a process that stays in one
// namespace, as all do but tests, does not miss it).
func thisNamespace() uint64 {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}

// Generation returns a number that changes with every transaction of nf_tables in this network
// namespace, of any program; 0 if it cannot be read.
func Generation() (n uint32) {
	_ = Request(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil, nil, func(m Value) {
		n = uint32(m.Find(unix.NFTA_GEN_ID).Uint())
	})
	return n
}
