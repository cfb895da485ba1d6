package lists

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestList: a list that is changed in places has what a slice has that is changed in them, those that it was made from
// stay as they were, and what is different of any two is what is different of the slices.
func TestList(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var list List[*int]
	var model []*int
	type state struct {
		list  List[*int]
		model []*int
	}
	var states []state
	add := func(v int) {
		p, found := list.Search(func(o *int) int { return cmp.Compare(*o, v) })
		at, known := slices.BinarySearchFunc(model, v, func(o *int, v int) int { return cmp.Compare(*o, v) })
		if found != known || known && list.At(p) != model[at] {
			t.Fatalf("of %d objects %d is found: %v, want %v", len(model), v, found, known)
		}
		switch {
		case !found:
			list, model = list.Insert(p, &v), slices.Insert(slices.Clone(model), at, &v)
		case rng.IntN(2) == 0:
			list, model = list.Delete(p), slices.Delete(slices.Clone(model), at, at+1)
		default:
			list, model = list.Set(p, &v), slices.Clone(model)
			model[at] = &v
		}
	}
	for step := range 12_000 {
		from, to := 0, 6_000
		if step > 9_000 { // some pages go
			from = 4_000
		}
		if add(from + rng.IntN(to-from)); step%400 == 0 || step > 11_980 {
			states = append(states, state{list, model})
		}
	}
	for _, s := range states {
		if got := slices.Collect(s.list.All()); s.list.Len() != len(s.model) || !slices.Equal(got, s.model) {
			t.Fatalf("a list has %d objects, %d in pages, which are not the %d of the slice", s.list.Len(), len(got), len(s.model))
		}
		for _, page := range s.list.pages {
			if len(page) == 0 || len(page) > 2*pageSize {
				t.Fatalf("a page has %d objects", len(page))
			}
		}
	}
	for i, was := range states {
		for _, is := range states[i:min(i+3, len(states))] {
			gone, come := Difference(was.list, is.list)
			wantGone, wantCome := difference(was.model, is.model)
			if !slices.Equal(gone, wantGone) || !slices.Equal(come, wantCome) {
				t.Fatalf("%d are gone and %d have come, want %d and %d", len(gone), len(come), len(wantGone), len(wantCome))
			}
		}
	}
	last := states[len(states)-1]
	mine, others := states[len(states)-2].list.apart(last.list)
	if len(last.list.pages) < 8 || len(mine) > 4*pageSize || len(others) > 4*pageSize {
		t.Errorf("a change of one in %d pages has %d and %d to be compared", len(last.list.pages), len(mine), len(others))
	}
	if !Equal(Of(model), Of(slices.Clone(model))) || Equal(Of(model), Of(model[1:])) {
		t.Error("lists of the same are not equal, or others are")
	}
}

// TestUpdate: a list that is made of another has what it is made of, and its pages before and behind what is different,
// however often something comes and goes.
func TestUpdate(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	model := rng.Perm(40 * pageSize)
	list := Update(List[int]{}, model)
	for step := range 3_000 {
		before, size, at := list, 1+rng.IntN(3), rng.IntN(len(model)-3)
		switch step % 3 {
		case 0:
			model = slices.Delete(model, at, at+size)
		case 1:
			model = slices.Insert(model, at, rng.Perm(size)...)
		default:
			model[at] = -1 - step
		}
		list = Update(list, model)
		if got := list.AppendTo(nil); list.Len() != len(model) || !slices.Equal(got, model) {
			t.Fatalf("step %d: %d of %d are listed, or others", step, len(got), len(model))
		}
		if mine, others := before.apart(list); len(mine) > 4*pageSize || len(others) > 4*pageSize {
			t.Fatalf("step %d: a change of %d has %d and %d to be compared", step, size, len(mine), len(others))
		}
		if !Equal(list, Update(list, slices.Clone(model))) || Equal(list, before) {
			t.Fatalf("step %d: lists of the same are not equal, or others are", step)
		}
	}
	if most := 3 * len(model) / pageSize; len(list.pages) > most {
		t.Errorf("%d in %d pages, want %d at the most", len(model), len(list.pages), most)
	}
	if list = Update(list, nil); list.Len() != 0 || len(list.pages) != 0 {
		t.Errorf("an empty list has %d in %d pages", list.Len(), len(list.pages))
	}
}
