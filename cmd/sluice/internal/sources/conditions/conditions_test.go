package conditions

import (
	"slices"
	"testing"
)

// TestPut: a condition is reported when it begins, keeps its time while it lasts, and may come again.
func TestPut(t *testing.T) {
	var began []string
	s := Set{Began: func(c Condition) { began = append(began, c.Text) }}
	a, b := Condition{Reason: AnnotationIgnored, Service: "web", Text: "a"}, Condition{Reason: ManifestRejected, Text: "b"}
	s.Put("x", []Condition{a})
	first := s.All()[0].Since
	s.Put("x", []Condition{a, b})
	s.Put("y", []Condition{{Reason: ManifestRejected, Text: "c"}})
	all := s.All()
	if len(all) != 3 || all[0].Text != "b" || all[2].Text != "a" || !all[2].Since.Equal(first) {
		t.Errorf("there are %+v, and a began at %v", all, first)
	}
	if n := s.Counts(); n[ManifestRejected] != 2 || n[AnnotationIgnored] != 1 {
		t.Errorf("counts are %v", n)
	}
	s.Put("x", nil)
	s.Put("x", []Condition{a})
	if want := []string{"a", "b", "c", "a"}; !slices.Equal(began, want) {
		t.Errorf("reported %q, want %q", began, want)
	}
	s.Put("x", nil)
	s.Put("y", nil)
	if n := s.Counts(); len(s.All()) > 0 || n[AnnotationIgnored] != 0 || len(n) != 2 {
		t.Errorf("in the end there are %v, counts %v", s.All(), n)
	}
}
