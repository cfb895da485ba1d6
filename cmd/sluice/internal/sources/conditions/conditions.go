package conditions

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

// The reasons of conditions, beside those of Events that last.
const (
	ManifestRejected   = "ManifestRejected"
	ManifestWarning    = "ManifestWarning"
	ManifestIgnored    = "ManifestIgnored"
	EndpointsUnmatched = "EndpointsUnmatched"
	NoEndpointSlices   = "NoEndpointSlices"
	EndpointsLeftOut   = "EndpointsLeftOut"
	AnnotationIgnored  = "AnnotationIgnored"
	PortsLeftOut       = "PortsLeftOut"
)

// Reasons says of each, in the order of the reference, what it means.
var Reasons = []struct{ Reason, Means string }{
	{AnnotationIgnored, "An annotation is misspelt, or its value is out of range. It requests nothing."},
	{NoEndpointSlices, "The Service has no EndpointSlice and no Endpoints object."},
	{EndpointsUnmatched, "An EndpointSlice, an Endpoints object or a port of it belongs to no Service."},
	{EndpointsLeftOut, "Endpoints have addresses that Sluice does not send to."},
	{PortsLeftOut, "The Service has more ports than Sluice serves of one."},
	{ManifestRejected, "A manifest is not applied. The last valid version of it is served."},
	{ManifestWarning, "A manifest is applied, but a part of it has no effect."},
	{ManifestIgnored, "A file is not read because of its name, or a folder has no file to read."},
}

// Condition is one thing that is wrong.
type Condition struct {
	Reason    string    `json:"reason"`              // one word for programs, as in the Event
	Namespace string    `json:"namespace,omitempty"` // of the Service
	Service   string    `json:"service,omitempty"`   // empty: it is about no single Service
	Text      string    `json:"text"`                // what is wrong, where, and what to do
	Since     time.Time `json:"since"`               // when it began
}

// same reports whether two are one condition, whenever they began.
func (c *Condition) same(o Condition) bool {
	o.Since = c.Since
	return *c == o
}

// Set is all conditions of a process. The zero Set is ready. Its methods may be called from anywhere.
type Set struct {
	mu    sync.Mutex // guards the following
	of    map[string][]Condition
	count map[string]int // by reason, those that have been but are over included
}

// Note says what is wrong with a subject now: nothing, if there are none. What was wrong already keeps its Since. It
// returns the conditions that have begun.
func (s *Set) Note(subject string, now []Condition) (began []Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of, s.count = make(map[string][]Condition), make(map[string]int)
	}
	was := s.of[subject]
	kept := make([]Condition, 0, len(now))
	for _, c := range now {
		if at := slices.IndexFunc(was, c.same); at >= 0 {
			c.Since = was[at].Since
		} else {
			c.Since = time.Now()
			began = append(began, c)
		}
		kept = append(kept, c)
		s.count[c.Reason]++
	}
	for _, c := range was {
		s.count[c.Reason]--
	}
	if s.of[subject] = kept; len(kept) == 0 {
		delete(s.of, subject)
	}
	return began
}

// All returns all conditions: those of no single Service first, then by Service, reason and text.
func (s *Set) All() (all []Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.of {
		all = append(all, of...)
	}
	slices.SortFunc(all, func(a, b Condition) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Service, b.Service),
			strings.Compare(a.Reason, b.Reason), strings.Compare(a.Text, b.Text))
	})
	return all
}

// Counts returns how many conditions there are of each reason that there has been.
func (s *Set) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]int, len(s.count))
	for reason, n := range s.count {
		out[reason] = n
	}
	return out
}
