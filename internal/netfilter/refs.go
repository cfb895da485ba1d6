package netfilter

// Refs counts references to elements of one kind that the kernel is to hold, such as
// the members of a set or the addresses of an interface: an element is wanted while it
// has references. It also knows which elements the kernel has, and which of them may
// have to be written, so that a change costs what it changes. The zero Refs is empty.
type Refs[T comparable] struct {
	all     map[T]*ref[T]
	touched []*ref[T] // each once; since Settle
}

type ref[T comparable] struct {
	of      T
	count   int32
	present bool // in the kernel
	touched bool
}

func (r *ref[T]) missing() bool { return r.count > 0 && !r.present }
func (r *ref[T]) surplus() bool { return r.count == 0 && r.present }

// Add adds n references to an element; n may be negative.
func (r *Refs[T]) Add(x T, n int32) { r.touch(x).count += n }

// SetPresent notes whether the kernel has an element.
func (r *Refs[T]) SetPresent(x T, present bool) { r.touch(x).present = present }

// touch returns an element that is about to change.
func (r *Refs[T]) touch(x T) *ref[T] {
	v := r.all[x]
	if v == nil {
		if r.all == nil {
			r.all = make(map[T]*ref[T])
		}
		v = &ref[T]{of: x}
		r.all[x] = v
	}
	if !v.touched {
		v.touched = true
		r.touched = append(r.touched, v)
	}
	return v
}

// get returns what is known of an element.
func (r *Refs[T]) get(x T) ref[T] {
	if v := r.all[x]; v != nil {
		return *v
	}
	return ref[T]{}
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
func (r *Refs[T]) Wanted(x T) bool { return r.get(x).count > 0 }

// Present reports whether the kernel has an element.
func (r *Refs[T]) Present(x T) bool { return r.get(x).present }

// Each calls f for every element that is wanted or present.
func (r *Refs[T]) Each(f func(x T, wanted, present bool)) {
	for x, v := range r.all {
		if v.count > 0 || v.present {
			f(x, v.count > 0, v.present)
		}
	}
}

// Missing returns the elements that are wanted and not present.
func (r *Refs[T]) Missing() []T { return r.which((*ref[T]).missing) }

// Kept returns the elements that are wanted, of those that have changed since Settle.
func (r *Refs[T]) Kept() []T { return r.which(func(v *ref[T]) bool { return v.count > 0 }) }

// Surplus returns the elements that are present and not wanted.
func (r *Refs[T]) Surplus() []T { return r.which((*ref[T]).surplus) }

func (r *Refs[T]) which(f func(*ref[T]) bool) []T {
	n := 0
	for _, v := range r.touched {
		if f(v) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]T, 0, n)
	for _, v := range r.touched {
		if f(v) {
			out = append(out, v.of)
		}
	}
	return out
}

// Grown notes that the kernel has got what was missing.
func (r *Refs[T]) Grown() {
	for _, v := range r.touched {
		v.present = v.present || v.count > 0
	}
}

// Shrunk notes that the kernel has lost what was surplus.
func (r *Refs[T]) Shrunk() {
	for _, v := range r.touched {
		v.present = v.present && v.count > 0
	}
}

// Settle is called when no element is missing and none is surplus. It frees what is
// neither wanted nor present.
func (r *Refs[T]) Settle() {
	for _, v := range r.touched {
		if v.touched = false; v.count == 0 && !v.present {
			delete(r.all, v.of)
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
		if !r.get(x).present {
			return false
		}
	}
	return len(list) == n
}
