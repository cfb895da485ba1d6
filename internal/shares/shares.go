package shares

// Percent is the part of a resource, 1 to 100, that one holder may have while it is the only one. 0, as 100: no bound.
type Percent int64

// Shares are those of each Service, with all of its ports, and of each client address.
type Shares struct {
	Service, Client Percent
}

// Allows reports whether a holder that has held units may take n more while free units are free.
func (p Percent) Allows(held, n, free int64) bool {
	return p <= 0 || p >= 100 || (held+n)*int64(100-p) <= int64(p)*free
}
