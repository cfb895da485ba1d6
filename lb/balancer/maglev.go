package balancer

// primes are sizes of tables, as Cilium has them.
var primes = [...]uint64{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071}

// maglevTable returns the table of Maglev (Eisenbud and others: Maglev: A Fast and Reliable Software Network Load
// Balancer, NSDI 2016, 3.4) for the backends of a ring that take turns by address. It is more than 300 times as long as
// there are backends, up to 436: so one client in 120 moves from one backend that stays to another when one of 100 goes
// or comes, besides those of that one. With 100 times it would be one in 80.
func maglevTable(r ring, turns []uint32, salt uint64) []uint32 {
	if len(r) == 0 {
		return nil
	}
	size := primes[len(primes)-1]
	for i := len(primes) - 1; i >= 0 && primes[i] > uint64(max(300*len(r), len(turns))); i-- {
		size = primes[i]
	}
	// Each backend prefers the elements in an order of its own: from one on, by steps of the same length.
	at, step := make([]uint64, len(r)), make([]uint64, len(r))
	for i, k := range r {
		h := hashAddr(salt, k.addr)
		at[i], step[i] = h%size, mix(h)%(size-1)+1
	}
	const free = ^uint32(0)
	table := make([]uint32, size)
	for i := range table {
		table[i] = free
	}
	for filled := uint64(0); ; {
		for _, i := range turns {
			for table[at[i]] != free {
				at[i] += step[i]
				if at[i] >= size {
					at[i] -= size
				}
			}
			table[at[i]] = i
			if filled++; filled == size {
				return table
			}
		}
	}
}
