package kube

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestConverterIsConvert: whatever came before, and in whatever order the objects
// are, a Converter makes of them what Convert makes.
func TestConverterIsConvert(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pool := many(40, 20)
	var c Converter
	o := flat{}
	options := Options{Facts: Facts{NodeName: "node-3"}}
	for step := range 600 {
		o = flat{Services: slices.Clone(o.Services), Slices: slices.Clone(o.Slices)}
		for range 1 + rng.IntN(3) {
			o.Services = toggle(rng, o.Services, pool.Services)
			o.Slices = toggle(rng, o.Slices, pool.Slices)
		}
		switch rng.IntN(20) {
		case 0:
			shuffle(rng, o)
		case 1:
			options.Facts.NodeName = []string{"node-3", "node-4"}[rng.IntN(2)]
		case 2: // all of it changes at once
			pool = many(40, 20)
			o = flat{}
		case 3: // two of one name
			o.Services = append(o.Services, many(1, 10).Services...)
		}
		if got, want := describe(c.Convert(o.lists(), options)), describe(convert(o, options)); got != want {
			t.Fatalf("step %d: the Converter says\n%s\nConvert\n%s", step, got, want)
		}
	}
	c.Convert(Objects{}, options)
	if len(c.groups) != 0 || len(c.own) != 0 {
		t.Errorf("%d groups and %d Services are kept of no objects", len(c.groups), len(c.own))
	}
}

// TestUnchangedStay: services of objects that stay are the very same as before.
func TestUnchangedStay(t *testing.T) {
	o := many(40, 20)
	var c Converter
	before := c.Convert(o.lists(), Options{}).Services.AppendTo(nil)
	o.Slices = slices.Delete(slices.Clone(o.Slices), 0, 1)
	after := c.Convert(o.lists(), Options{}).Services.AppendTo(nil)
	other := 0
	for i := range after {
		if after[i] != before[i] {
			other++
		}
	}
	if len(after) != len(before) || other != 1 {
		t.Errorf("%d of %d services are not those of before, want 1", other, len(after))
	}
}

// TestAge: a Service is as old as the API server says, and within a second its UID decides. Without a time it is older
// than those with one, and as old as the others that came before it, however it is named; an edit changes nothing.
func TestAge(t *testing.T) {
	o := many(5, 1)
	at := func(i int, seconds int64, uid string) {
		o.Services[i].CreationTimestamp, o.Services[i].UID = metav1.Unix(seconds, 0), types.UID(uid)
		o.Services[i] = TrimService(o.Services[i])
	}
	at(0, 200, "a")
	at(1, 100, "b")
	at(2, 100, "c")
	o.Services[3], o.Services[4] = o.Services[4], o.Services[3]
	var k Converter
	ages := func() (out []int64) {
		for _, s := range k.Convert(o.lists(), Options{}).Services.AppendTo(nil) {
			out = append(out, s.Created)
		}
		return out
	}
	was := ages()
	if was[0] < 200e9 || was[1] < 100e9 || was[1] >= 101e9 || was[2] < 100e9 || was[1] == was[2] || was[4] != 4 || was[3] != 5 {
		t.Errorf("ages %v", was)
	}
	edited := *o.Services[4]
	edited.Spec.ExternalIPs = []string{"192.0.2.1"}
	o.Services = append(slices.Clone(o.Services[:4]), &edited)
	if now := ages(); !slices.Equal(now, was) {
		t.Errorf("an edit makes the ages %v of %v", now, was)
	}
	whole := o.Services
	o.Services = whole[:4]
	ages()
	if o.Services = whole; ages()[3] != 6 {
		t.Errorf("a Service that comes anew is as old as before: %v", ages())
	}
}

// toggle takes one of the pool out of the list, or puts it in somewhere.
func toggle[T any](rng *rand.Rand, list, pool []*T) []*T {
	v := pool[rng.IntN(len(pool))]
	if i := slices.Index(list, v); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return slices.Insert(list, rng.IntN(len(list)+1), v)
}

// BenchmarkConverter is one endpoint of 10,000 Services coming and going.
func BenchmarkConverter(b *testing.B) {
	one := many(10_000, 10)
	before := one.lists()
	after := before
	p, _ := before.Slices.Search(func(s *discoveryv1.EndpointSlice) int { return strings.Compare(s.Name, one.Slices[5000].Name) })
	changed := *one.Slices[5000]
	changed.Endpoints = changed.Endpoints[1:]
	after.Slices = before.Slices.Set(p, &changed)
	var c Converter
	c.Convert(before, Options{})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if n := c.Convert([]Objects{after, before}[i%2], Options{}).Services.Len(); n != 10_000 {
			b.Fatal(n)
		}
	}
}
