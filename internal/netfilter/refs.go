package netfilter

// Refs counts references to elements of one kind that the kernel is to hold, such as
// the members of a set or the addresses of an interface: an element is wanted while it
// has references. It also knows which elements the kernel has, and which of them may
// have to be written, so that a change costs what it changes. The zero Refs is empty.
type Refs[T comparable] struct {
	all     map[T]ref
	touched []T // each once; since Settle
}

// ref is in the map itself, which has one for each of a hundred thousand elements.
type ref struct {
	count   int32
	present bool // in the kernel
	touched bool
}

func (r ref) wanted() bool  { return r.count > 0 }
func (r ref) missing() bool { return r.count > 0 && !r.present }
func (r ref) surplus() bool { return r.count == 0 && r.present }

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

// put stores what is known of an element, which may have to be written.
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

// Found notes that the kernel has these elements and no others. It returns how many more these are than were present.
func (r *Refs[T]) Found(list []T) (more int) {
	has := make(map[T]struct{}, len(list))
	for _, x := range list {
		has[x] = struct{}{}
		if !r.Present(x) {
			r.SetPresent(x, true)
			more++
		}
	}
	for x, v := range r.all {
		if _, there := has[x]; v.present && !there {
			r.SetPresent(x, false)
			more--
		}
	}
	return more
}

// ReleaseAll drops all references.
func (r *Refs[T]) ReleaseAll() {
	for x, v := range r.all {
		r.Add(x, -v.count)
	}
}

// Len returns how many elements are wanted or present, or have been since Settle.
func (r *Refs[T]) Len() int { return len(r.all) }

// Wanted reports whether an element has references.
func (r *Refs[T]) Wanted(x T) bool { return r.all[x].wanted() }

// Present reports whether the kernel has an element.
func (r *Refs[T]) Present(x T) bool { return r.all[x].present }

// Each calls f for every element that is wanted or present.
func (r *Refs[T]) Each(f func(x T, wanted, present bool)) {
	for x, v := range r.all {
		if v.wanted() || v.present {
			f(x, v.wanted(), v.present)
		}
	}
}

// Missing returns the elements that are wanted and not present.
func (r *Refs[T]) Missing() []T { return r.which(ref.missing) }

// Kept returns the elements that are wanted, of those that have changed since Settle.
func (r *Refs[T]) Kept() []T { return r.which(ref.wanted) }

// Surplus returns the elements that are present and not wanted.
func (r *Refs[T]) Surplus() []T { return r.which(ref.surplus) }

func (r *Refs[T]) which(f func(ref) bool) []T {
	n := 0
	for _, x := range r.touched {
		if f(r.all[x]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]T, 0, n)
	for _, x := range r.touched {
		if f(r.all[x]) {
			out = append(out, x)
		}
	}
	return out
}

// Grown notes that the kernel has got what was missing.
func (r *Refs[T]) Grown() {
	for _, x := range r.touched {
		v := r.all[x]
		v.present = v.present || v.wanted()
		r.all[x] = v
	}
}

// Shrunk notes that the kernel has lost what was surplus.
func (r *Refs[T]) Shrunk() {
	for _, x := range r.touched {
		v := r.all[x]
		v.present = v.present && v.wanted()
		r.all[x] = v
	}
}

// Settle is called when no element is missing and none is surplus. It frees what is
// neither wanted nor present.
func (r *Refs[T]) Settle() {
	for _, x := range r.touched {
		v := r.all[x]
		if v.count == 0 && !v.present {
			delete(r.all, x)
			continue
		}
		v.touched = false
		r.all[x] = v
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
		if !r.Present(x) {
			return false
		}
	}
	return len(list) == n
}
