package ipvs

// things are all of one kind that are to be in the kernel, or are there: the members of
// a set, or the addresses of our interface. It is counted how many want each, and known
// which may have to be written, so that a change costs what it changes.
type things[T comparable] struct {
	all     map[T]thing
	touched []T // each once; since settle
}

type thing struct {
	wanted  int32 // how many want it
	there   bool
	touched bool
}

// want counts n more that want it, or fewer.
func (t *things[T]) want(x T, n int32) {
	v := t.all[x]
	was := v.wanted
	v.wanted += n
	t.put(x, v, (was == 0) != (v.wanted == 0))
}

// is notes whether it is there.
func (t *things[T]) is(x T, there bool) {
	v := t.all[x]
	v.there = there
	t.put(x, v, true)
}

func (t *things[T]) put(x T, v thing, touch bool) {
	if t.all == nil {
		t.all = make(map[T]thing)
	}
	if touch && !v.touched {
		v.touched = true
		t.touched = append(t.touched, x)
	}
	t.all[x] = v
}

// found notes that these are there, and nothing else.
func (t *things[T]) found(list []T) {
	for x := range t.all {
		t.is(x, false)
	}
	for _, x := range list {
		t.is(x, true)
	}
}

// forsake has nobody want any.
func (t *things[T]) forsake() {
	for x, v := range t.all {
		t.want(x, -v.wanted)
	}
}

// lacking returns those that are to be written.
func (t *things[T]) lacking() []T {
	return t.which(func(v thing) bool { return v.wanted > 0 && !v.there })
}

// stays returns those that are to be there, and were not always wanted or there.
func (t *things[T]) stays() []T { return t.which(func(v thing) bool { return v.wanted > 0 }) }

// surplus returns those that are to be removed.
func (t *things[T]) surplus() []T {
	return t.which(func(v thing) bool { return v.wanted == 0 && v.there })
}

func (t *things[T]) which(f func(thing) bool) (out []T) {
	for _, x := range t.touched {
		if f(t.all[x]) {
			out = append(out, x)
		}
	}
	return out
}

// settle is called when nothing lacks and nothing is left over.
func (t *things[T]) settle() {
	for _, x := range t.touched {
		v := t.all[x]
		if v.touched = false; v == (thing{}) {
			delete(t.all, x)
		} else {
			t.all[x] = v
		}
	}
	t.touched = nil
}

// hold reports whether list, in which each is once, is what is there.
func (t *things[T]) hold(list []T) bool {
	n := 0
	for _, v := range t.all {
		if v.there {
			n++
		}
	}
	for _, x := range list {
		if !t.all[x].there {
			return false
		}
	}
	return len(list) == n
}
