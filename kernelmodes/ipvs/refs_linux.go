package ipvs

// refs counts how many Services use each object of one kind: a member of a set, or an
// address of our interface. An object that gets its first user, or loses its last, is
// pending until commit, so that a change costs what it changes.
type refs[T comparable] struct {
	users   map[T]int32 // those without a user are absent
	pending map[T]bool  // whether the kernel has it
}

func newRefs[T comparable]() *refs[T] {
	return &refs[T]{users: make(map[T]int32), pending: make(map[T]bool)}
}

// add counts n more users, or fewer.
func (r *refs[T]) add(x T, n int32) {
	was := r.users[x]
	if _, is := r.pending[x]; !is && (was == 0) != (was+n == 0) {
		r.pending[x] = was > 0
	}
	if r.users[x] = was + n; was+n == 0 {
		delete(r.users, x)
	}
}

// reset leaves every object without users.
func (r *refs[T]) reset() {
	for x, n := range r.users {
		r.add(x, -n)
	}
}

// inKernel reports whether the kernel has an object, as far as is known.
func (r *refs[T]) inKernel(x T) bool {
	if there, is := r.pending[x]; is {
		return there
	}
	return r.users[x] > 0
}

// found makes everything pending: the kernel has these and no others.
func (r *refs[T]) found(list []T) {
	clear(r.pending)
	for x := range r.users {
		r.pending[x] = false
	}
	r.wrote(list, true)
}

// wrote notes that the kernel has these now, or has them no more.
func (r *refs[T]) wrote(list []T, there bool) {
	for _, x := range list {
		r.pending[x] = there
	}
}

// missing returns the objects that the kernel is to get.
func (r *refs[T]) missing() []T {
	return r.which(func(used, there bool) bool { return used && !there })
}

// surplus returns the objects that the kernel is to lose.
func (r *refs[T]) surplus() []T {
	return r.which(func(used, there bool) bool { return !used && there })
}

// kept returns the pending objects that have users.
func (r *refs[T]) kept() []T { return r.which(func(used, _ bool) bool { return used }) }

func (r *refs[T]) which(is func(used, there bool) bool) (out []T) {
	for x, there := range r.pending {
		if is(r.users[x] > 0, there) {
			out = append(out, x)
		}
	}
	return out
}

// commit ends a change: the kernel has what is used.
func (r *refs[T]) commit() {
	if len(r.pending) > 0 {
		r.pending = make(map[T]bool) // the first Sync has made it large
	}
}

// equal reports whether list, which has no object twice, is what is used.
func (r *refs[T]) equal(list []T) bool {
	for _, x := range list {
		if r.users[x] == 0 {
			return false
		}
	}
	return len(list) == len(r.users)
}
