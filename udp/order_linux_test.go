package udp

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// An order is compared with a slice, over random operations.
func TestOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var model []*flow
	o := order{by: byAge}
	for range 20000 {
		i := 0
		if len(model) > 0 {
			i = r.IntN(len(model))
		}
		switch op := r.IntN(5); {
		case op == 0 || len(model) == 0:
			f := new(flow)
			o.pushFront(f)
			model = slices.Insert(model, 0, f)
		case op == 1 && len(model) > 5:
			o.remove(model[i])
			model = slices.Delete(model, i, i+1)
		case op == 2:
			f := model[i]
			o.toBack(f)
			model = append(slices.Delete(model, i, i+1), f)
		default:
			f := model[i]
			o.toFront(f)
			model = slices.Insert(slices.Delete(model, i, i+1), 0, f)
		}
		if len(model) > 8 {
			o.remove(model[len(model)-1])
			model = model[:len(model)-1]
		}
		var forward, backward []*flow
		for f := o.first; f != nil; f = f.links[byAge].next {
			forward = append(forward, f)
		}
		for f := o.last; f != nil; f = f.links[byAge].prev {
			backward = append(backward, f)
		}
		slices.Reverse(backward)
		if !slices.Equal(forward, model) || !slices.Equal(backward, model) || o.len != len(model) {
			t.Fatalf("order is %v forwards, %v backwards, length %d, want %v", forward, backward, o.len, model)
		}
	}
}
