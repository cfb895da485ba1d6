package conditions

import (
	"slices"
	"testing"
)

// TestNote: a condition is returned when it begins, keeps its time while it lasts, and may come again.
func TestNote(t *testing.T) {
	var s Set
	var began []string
	note := func(subject string, now []Condition) {
		for _, c := range s.Note(subject, now) {
			began = append(began, c.Text)
		}
	}
	a, b := Condition{Reason: AnnotationIgnored, Service: "web", Text: "a"}, Condition{Reason: ManifestRejected, Text: "b"}
	note("x", []Condition{a})
	first := s.All()[0].Since
	note("x", []Condition{a, b})
	note("y", []Condition{{Reason: ManifestRejected, Text: "c"}})
	all := s.All()
	if len(all) != 3 || all[0].Text != "b" || all[2].Text != "a" || !all[2].Since.Equal(first) {
		t.Errorf("there are %+v, and a began at %v", all, first)
	}
	if n := s.Counts(); n[ManifestRejected] != 2 || n[AnnotationIgnored] != 1 {
		t.Errorf("counts are %v", n)
	}
	note("x", nil)
	note("x", []Condition{a})
	if want := []string{"a", "b", "c", "a"}; !slices.Equal(began, want) {
		t.Errorf("returned %q, want %q", began, want)
	}
	note("x", nil)
	note("y", nil)
	if n := s.Counts(); len(s.All()) > 0 || n[AnnotationIgnored] != 0 || len(n) != 2 {
		t.Errorf("in the end there are %v, counts %v", s.All(), n)
	}
}
