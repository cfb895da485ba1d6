package udp

import (
	"reflect"
	"testing"
)

// A counter that add forgets would stay at the first loop's.
func TestStatsAddsEveryField(t *testing.T) {
	var one Stats
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Int64:
			f.SetInt(1)
		default:
			f.SetUint(1)
		}
	}
	sum := one
	sum.add(one)
	v = reflect.ValueOf(sum)
	for i := range v.NumField() {
		n := uint64(2)
		if f := v.Field(i); f.CanInt() && f.Int() != 2 || f.CanUint() && f.Uint() != n {
			t.Errorf("%s is not added", v.Type().Field(i).Name)
		}
	}
}
