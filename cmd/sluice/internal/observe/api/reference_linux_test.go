package api

import (
	"net/url"
	"reflect"
	"slices"
	"testing"
)

// TestResources: each route answers the type that documents show, and documents explain each of its parameters.
func TestResources(t *testing.T) {
	s := sourcesOf(t, 1, 1)
	for _, r := range resources {
		q := url.Values{}
		if slices.Contains(r.params, "address") {
			q.Set("address", "10.96.0.0:80")
		}
		if r.name == "history" {
			continue // the sources of this test keep none
		}
		if got, err := r.get(s, q); err != nil || reflect.TypeOf(got) != reflect.TypeOf(r.answer) {
			t.Errorf("%s answers %T, %v, want %T", r.name, got, err, r.answer)
		}
	}
	for _, r := range Resources() {
		for _, name := range r.Params {
			if !slices.ContainsFunc(Params, func(p Param) bool { return p.Name == name }) {
				t.Errorf("%s %s: nothing explains %s", r.Method, r.Path, name)
			}
		}
	}
}
