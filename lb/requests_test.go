package lb

import (
	"reflect"
	"testing"
)

// TestDefaults: each policy is what a Service requests, or else what is given for all.
func TestDefaults(t *testing.T) {
	set := func(i int) (p Policies) {
		f := reflect.ValueOf(&p).Elem().Field(i)
		switch {
		case f.CanInt():
			f.SetInt(1)
		case f.Kind() == reflect.String:
			f.SetString("x")
		default:
			t.Fatalf("no value is known for %s", reflect.TypeFor[Policies]().Field(i).Name)
		}
		return p
	}
	for i := range reflect.TypeFor[Policies]().NumField() {
		name, p, none := reflect.TypeFor[Policies]().Field(i).Name, set(i), Policies{}
		if got := *none.Or(&p); got != p {
			t.Errorf("%s: given for all, it is %+v", name, got)
		}
		if got := *p.Or(&none); got != p {
			t.Errorf("%s: requested, it is %+v", name, got)
		}
	}
}
