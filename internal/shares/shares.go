package shares

// Percent is the part of a resource, 1 to 100, that one holder may have while it is the only one. 100: no bound.
type Percent int64

// Allows reports whether a holder that has held units may take n more while free units are free.
func (p Percent) Allows(held, n, free int64) bool {
	return p >= 100 || (held+n)*int64(100-p) <= int64(p)*free
}

// Holders counts what each holder has. The zero value is ready to use. It is for one goroutine.
type Holders[K comparable] struct {
	held map[K]int64
}

// Held returns what k has.
func (h *Holders[K]) Held(k K) int64 { return h.held[k] }

// Add notes that k has n more, or less if n is negative. A holder that has nothing is forgotten.
func (h *Holders[K]) Add(k K, n int64) {
	if h.held == nil {
		h.held = make(map[K]int64)
	}
	if has := h.held[k] + n; has != 0 {
		h.held[k] = has
	} else {
		delete(h.held, k)
	}
}
