package lb

import (
	"net/netip"
	"reflect"
	"testing"
)

// TestEqual: what says the same in other memory is equal, and a change of any one field
// makes it another.
func TestEqual(t *testing.T) {
	make := func() *Service {
		return &Service{
			ID: ID{Namespace: "default", Name: "web", Port: "http", Protocol: TCP},
			Addresses: []Address{{
				Addr: netip.MustParseAddrPort("203.0.113.80:80"), Kind: LoadBalancerIP,
				Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			}},
			Backends:        []Backend{{Addr: netip.MustParseAddrPort("10.244.1.10:8080"), Ready: true}},
			AffinityTimeout: 1, Policies: &Policies{DataPath: "ipvs", Scheduler: "rr"},
		}
	}
	s := make()
	if !s.Equal(make()) {
		t.Error("what says the same is not equal")
	}
	other := make()
	other.Backends = append(other.Backends, Backend{})
	if s.Equal(other) || other.Equal(s) {
		t.Error("a backend more makes no difference")
	}
	other = make()
	fields := 0
	for _, part := range []any{&other.ID, &other.Addresses[0], &other.Backends[0], other.Policies, other} {
		v := reflect.ValueOf(part).Elem()
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().String()+"."+v.Type().Field(i).Name
			if v.Type().Field(i).Anonymous {
				continue // each of its fields is changed
			}
			was := reflect.New(f.Type()).Elem()
			was.Set(f)
			switch x := f.Addr().Interface().(type) {
			case *netip.AddrPort:
				*x = netip.AddrPortFrom(x.Addr(), x.Port()+1)
			case *[]netip.Prefix:
				*x = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25")}
			default:
				switch {
				case f.CanUint():
					f.SetUint(f.Uint() + 1)
				case f.CanInt():
					f.SetInt(f.Int() + 1)
				case f.Kind() == reflect.Bool:
					f.SetBool(!f.Bool())
				case f.Kind() == reflect.String:
					f.SetString(f.String() + "x")
				case f.Kind() == reflect.Slice || f.Kind() == reflect.Pointer:
					f.SetZero()
				default:
					t.Fatalf("no other value is known for %s", name)
				}
			}
			if s.Equal(other) || other.Equal(s) {
				t.Errorf("another %s makes no difference", name)
			}
			f.Set(was)
			fields++
		}
	}
	if !s.Equal(other) || fields < 20 {
		t.Errorf("the test is wrong: %d fields", fields)
	}
}
