package counters

import (
	"reflect"
	"sync/atomic"
)

// Add adds the present values of counters and gauges to sum. *S is the snapshot's type and *C the
// counters' type of one list.
func Add[S, C any](sum *S, from *C) {
	walk(reflect.ValueOf(sum).Elem(), reflect.ValueOf(from).Elem(), func(sum reflect.Value, from any) {
		switch from := from.(type) {
		case *atomic.Uint64:
			sum.SetUint(sum.Uint() + from.Load())
		case *atomic.Int64:
			sum.SetInt(sum.Int() + from.Load())
		}
	})
}

// Restore adds what was counted elsewhere to the counters. Gauges are left out.
func Restore[S, C any](to *C, from *S) {
	walk(reflect.ValueOf(from).Elem(), reflect.ValueOf(to).Elem(), func(from reflect.Value, to any) {
		if to, ok := to.(*atomic.Uint64); ok {
			to.Add(from.Uint())
		}
	})
}

// walk passes every field of two structs of one list to visit.
func walk(snapshot, counters reflect.Value, visit func(snapshot reflect.Value, counter any)) {
	for i := range snapshot.NumField() {
		switch c := counters.Field(i); c.Type() {
		case reflect.TypeFor[atomic.Uint64](), reflect.TypeFor[atomic.Int64]():
			visit(snapshot.Field(i), c.Addr().Interface())
		default:
			walk(snapshot.Field(i), c, visit)
		}
	}
}
