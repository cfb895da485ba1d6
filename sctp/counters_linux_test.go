package sctp

import (
	"reflect"
	"sync/atomic"
	"testing"
)

// A counter that is in no list would stay 0.
func TestEveryFieldIsCounted(t *testing.T) {
	var c counters
	var sum Stats
	c.active.Add(1)
	c.dialling.Add(1)
	c.each(&sum, func(c *atomic.Uint64, _ *uint64) { c.Add(1) })
	c.addTo(&sum)
	c.addTo(&sum)
	for v, i := reflect.ValueOf(sum), 0; i < v.NumField(); i++ {
		if f := v.Field(i); f.CanInt() && f.Int() != 2 || f.CanUint() && f.Uint() != 2 {
			t.Errorf("%s is not added", v.Type().Field(i).Name)
		}
	}
}
