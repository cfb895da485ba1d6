package lb

// part is a hash table of frontends with open addressing and linear probing. A
// lookup takes half the time of that in a map, and is most of a Pick.
type part struct {
	entries []entry // a power of two of them, at most half of them used; nil if none is
	used    int
}

// entry is free if it is not owned.
type entry struct {
	f Frontend
	owner
}

// find returns the owner of f, whose hash is h.
func (p *part) find(f *Frontend, h uint64) (owner, bool) {
	if p.used == 0 {
		return owner{}, false
	}
	e := &p.entries[p.place(f, h)]
	return e.owner, e.owned
}

// place returns where f is, or where it would be put. There is a free entry to end at.
func (p *part) place(f *Frontend, h uint64) uint64 {
	mask := uint64(len(p.entries) - 1)
	i := h & mask
	for p.entries[i].owned && p.entries[i].f != *f {
		i = (i + 1) & mask
	}
	return i
}

// put makes by the owner of f, which has none.
func (p *part) put(f *Frontend, by owner) {
	if 2*(p.used+1) > len(p.entries) {
		p.rebuild(max(8, 2*len(p.entries)))
	}
	p.entries[p.place(f, f.hash())] = entry{*f, by}
	p.used++
}

// remove frees f. What stands behind it may have been put there because f was in the way.
func (p *part) remove(f *Frontend) {
	at := p.place(f, f.hash())
	if !p.entries[at].owned {
		return
	}
	p.entries[at] = entry{}
	p.rebuild(len(p.entries))
}

// rebuild puts all entries into a fresh table.
func (p *part) rebuild(size int) {
	old := p.entries
	p.entries, p.used = make([]entry, size), 0
	for i := range old {
		if e := &old[i]; e.owned {
			p.entries[p.place(&e.f, e.f.hash())] = *e
			p.used++
		}
	}
}

// hash spreads frontends over shards by its highest bits, and over entries by its lowest.
func (f *Frontend) hash() uint64 {
	hi, lo := split(f.Addr.Addr())
	return mix(hi ^ lo<<24 ^ lo>>40 ^ uint64(f.Addr.Port())<<8 ^ uint64(f.Protocol))
}
