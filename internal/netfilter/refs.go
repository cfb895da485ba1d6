package netfilter

// Refs counts references to elements of one kind that the kernel is to hold, such as
// the members of a set or the addresses of an interface: an element is wanted while it
// has references. It also knows which elements the kernel has, and which of them may
// have to be written, so that a change costs what it changes. The zero Refs is empty.
type Refs[T comparable] struct {
	all     map[T]ref
	touched []T // each once; since Settle
}

type ref struct {
	count   int32
	present bool // in the kernel
	touched bool
}

// Add adds n references to an element; n may be negative.
func (r *Refs[T]) Add(x T, n int32) {
	v := r.all[x]
	v.count += n
	r.put(x, v)
}

// SetPresent notes whether the kernel has an element.
func (r *Refs[T]) SetPresent(x T, present bool) {
	v := r.all[x]
	v.present = present
	r.put(x, v)
}

func (r *Refs[T]) put(x T, v ref) {
	if r.all == nil {
		r.all = make(map[T]ref)
	}
	if !v.touched {
		v.touched = true
		r.touched = append(r.touched, x)
	}
	r.all[x] = v
}

// Found notes that the kernel has these elements and no others.
func (r *Refs[T]) Found(list []T) {
	for x := range r.all {
		r.SetPresent(x, false)
	}
	for _, x := range list {
		r.SetPresent(x, true)
	}
}

// ReleaseAll drops all references.
func (r *Refs[T]) ReleaseAll() {
	for x, v := range r.all {
		r.Add(x, -v.count)
	}
}

// Wanted reports whether an element has references, and Present whether the kernel has it.
func (r *Refs[T]) Wanted(x T) bool { return r.all[x].count > 0 }

// Present reports whether the kernel has an element.
func (r *Refs[T]) Present(x T) bool { return r.all[x].present }

// Each calls f for every element that is wanted or present.
func (r *Refs[T]) Each(f func(x T, wanted, present bool)) {
	for x, v := range r.all {
		if v.count > 0 || v.present {
			f(x, v.count > 0, v.present)
		}
	}
}

// Missing returns the elements that are wanted and not present.
func (r *Refs[T]) Missing() []T {
	return r.which(func(v ref) bool { return v.count > 0 && !v.present })
}

// Kept returns the elements that are wanted, of those that have changed since Settle.
func (r *Refs[T]) Kept() []T { return r.which(func(v ref) bool { return v.count > 0 }) }

// Surplus returns the elements that are present and not wanted.
func (r *Refs[T]) Surplus() []T {
	return r.which(func(v ref) bool { return v.count == 0 && v.present })
}

func (r *Refs[T]) which(f func(ref) bool) (out []T) {
	for _, x := range r.touched {
		if f(r.all[x]) {
			out = append(out, x)
		}
	}
	return out
}

// Settle is called when no element is missing and none is surplus. It frees what is
// neither wanted nor present.
func (r *Refs[T]) Settle() {
	for _, x := range r.touched {
		v := r.all[x]
		if v.touched = false; v == (ref{}) {
			delete(r.all, x)
		} else {
			r.all[x] = v
		}
	}
	r.touched = nil
}

// Settled reports whether nothing has changed since Settle.
func (r *Refs[T]) Settled() bool { return len(r.touched) == 0 }

// Match reports whether list, which has each element once, is what is present.
func (r *Refs[T]) Match(list []T) bool {
	n := 0
	for _, v := range r.all {
		if v.present {
			n++
		}
	}
	for _, x := range list {
		if !r.all[x].present {
			return false
		}
	}
	return len(list) == n
}
