package policies

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/nearest"
	"github.com/sluice-lb/sluice/lb"
)

// Prefix is that of the annotations that say what Sluice is to do.
const Prefix = "sluice.io/"

// Policy is a row of the table.
type Policy struct {
	Word    string // the annotation is Prefix + Word
	Means   string // the word in backquotes stands for the value
	Default string // what holds if nothing is given
	Flag    string // of kube-proxy that gives the default for all Services; empty: --default-policy does
	Alpha   bool   // it may change or go in any version
	Own     bool   // each Service has to request it itself: there is no default for all
	Kernel  string // the kernel's data paths that have it, in words; empty: none

	// Binds says that a Service that requests it is served in user space, whatever the mode is: it cannot do without.
	Binds bool

	Of   []lb.Protocol // that it is of use to; nil: all
	With string        // the policy without which it is of no use; empty: it needs none

	// Keeps says that a Service that requests it is served in user space, unless it requests a path by its name, or the
	// mode has the policy.
	Keeps bool

	kind kind

	// misses says why a Service does not have what it requests, on a path that has it for others; nil: all have it.
	misses func(s *lb.Service, path string) (reason string)
	// without are the values that request nothing of a data path.
	without []string
	// lacks says why a data path does not have what is requested, and what it does instead; nil: user space has it, and
	// no other path.
	lacks func(p *lb.Policies, path string) (instead, reason string)
}

// All returns the table, in the order in which it is shown.
func All() []*Policy { return table }

// Find returns the policy of a word; nil: there is none.
func Find(word string) *Policy {
	i := slices.IndexFunc(table, func(p *Policy) bool { return p.Word == word })
	if i < 0 {
		return nil
	}
	return table[i]
}

// Annotation returns the annotation's name.
func (p *Policy) Annotation() string { return Prefix + p.Word }

// Stability is what docs/stability.md promises: beta or alpha.
func (p *Policy) Stability() string {
	if p.Alpha {
		return "alpha"
	}
	return "beta"
}

// Values returns what can be given, in words.
func (p *Policy) Values() string { return p.kind.values() }

// ForAll returns the flag that gives the default for all Services; empty: there is none.
func (p *Policy) ForAll() string {
	switch {
	case p.Own:
		return ""
	case p.Flag != "":
		return "--" + p.Flag
	}
	return "--default-policy " + p.Word + "=VALUE"
}

// Set reads a value. After an error nothing has changed.
func (p *Policy) Set(to *lb.Policies, value string) error { return p.kind.set(to, value) }

// Get returns what is requested, as it can be given; empty: nothing is.
func (p *Policy) Get(of *lb.Policies) string { return p.kind.get(of) }

// Ignored is an annotation that is of no use.
type Ignored struct {
	Object     string // that has it, if that is not the Service
	Annotation string
	Value      string
	Reason     string // and what to do
}

// Error returns why.
func (i Ignored) Error() string {
	of := ""
	if i.Object != "" {
		of = i.Object + ": "
	}
	return fmt.Sprintf("%s%q: %s", of, short(i.Value), i.Reason)
}

// mostIgnored is how many annotations of an object are reported: who writes them may have written thousands.
const mostIgnored = 8

// weight is the word for EndpointSlices.
const weight = "weight"

// readinessProbe is the word for checks.
const readinessProbe = "readiness-probe"

// Weight is the annotation of an EndpointSlice with the weight of its endpoints.
const Weight = Prefix + weight

// Read returns what the annotations of a Service request, nil for nothing, and those that are of no use. probe says
// what is wrong with a readiness probe.
func Read(annotations map[string]string, probe func(string) error) (*lb.Policies, []Ignored) {
	var ignored []Ignored
	var p lb.Policies
	for name, value := range annotations {
		word, own := strings.CutPrefix(name, Prefix)
		if !own {
			if word = Misspelt(name); word != "" {
				ignored = append(ignored, Ignored{Annotation: name, Value: value,
					Reason: "did you mean " + Prefix + word + "?"})
			}
			continue
		}
		policy := Find(word)
		var err error
		switch {
		case word == weight:
			err = errors.New("it is for EndpointSlices: annotate those of the Service")
		case policy == nil:
			err = unknown(word, words())
		case policy.Word == readinessProbe:
			if err = probe(value); err == nil {
				err = policy.Set(&p, value)
			}
		default:
			err = policy.Set(&p, value)
		}
		if err != nil {
			if word == readinessProbe {
				value = hidden
			}
			ignored = append(ignored, Ignored{Annotation: name, Value: value, Reason: err.Error()})
		}
	}
	if p == (lb.Policies{}) {
		return nil, sorted(ignored)
	}
	return &p, sorted(ignored)
}

// Misspelt returns the word of a policy whose prefix is nearly ours; empty: the annotation is another program's.
func Misspelt(name string) string {
	prefix, word, _ := strings.Cut(name, "/")
	ours := strings.TrimSuffix(Prefix, "/")
	near := strings.HasPrefix(prefix, "sluice") || nearest.Of(prefix, slices.Values([]string{ours})) != ""
	if Find(word) == nil || !near {
		return ""
	}
	return word
}

// SetDefault reads what holds for all Services that do not request otherwise.
func SetDefault(to *lb.Policies, word, value string) error {
	p := Find(word)
	switch {
	case p == nil:
		var free []string
		for _, p := range table {
			if !p.Own && p.Flag == "" {
				free = append(free, p.Word)
			}
		}
		return fmt.Errorf("there is no policy %q%s", word, meant(word, free))
	case p.Own:
		return fmt.Errorf("%s is for single Services: give the annotation %s", word, p.Annotation())
	case p.Flag != "":
		return fmt.Errorf("%s has a flag of its own: give --%s", word, p.Flag)
	}
	if err := p.Set(to, value); err != nil {
		return fmt.Errorf("%s: %w", word, err)
	}
	return nil
}

// ReadSlice returns the annotations of an EndpointSlice that are of no use; badWeight says that its weight is none.
func ReadSlice(object string, annotations map[string]string, badWeight bool) (ignored []Ignored) {
	for name, value := range annotations {
		word, own := strings.CutPrefix(name, Prefix)
		reason := ""
		switch {
		case !own || word == weight && !badWeight:
			continue
		case word == weight:
			reason = "it is not a number from 0 to 65535: its endpoints have weight 1"
		case Find(word) != nil:
			reason = "it is for the Service: annotate that"
		default:
			reason = unknown(word, []string{weight}).Error()
		}
		ignored = append(ignored, Ignored{object, name, value, reason})
	}
	return sorted(ignored)
}

// sorted orders what is ignored by name, and leaves out what is too much.
func sorted(ignored []Ignored) []Ignored {
	slices.SortFunc(ignored, func(a, b Ignored) int { return strings.Compare(a.Annotation, b.Annotation) })
	if n := len(ignored) - mostIgnored; n > 0 {
		ignored = ignored[:mostIgnored:mostIgnored]
		ignored[mostIgnored-1].Reason += fmt.Sprintf("; and %d more", n)
	}
	return ignored
}

func words() (out []string) {
	for _, p := range table {
		out = append(out, p.Word)
	}
	return out
}

// unknown says that there is no such word, and which one may be meant.
func unknown(word string, words []string) error {
	if near := nearest.Of(word, slices.Values(words)); near != "" {
		return fmt.Errorf("there is no such policy: did you mean %s%s?", Prefix, near)
	}
	return errors.New("there is no such policy: see docs/reference/annotations.md, or remove it")
}

// Shortfall is a policy that a Service requests and its data path does not have.
type Shortfall struct {
	Policy    string // its word
	Requested string
	Instead   string // what there is
	Reason    string
}

// Shortfalls returns what a Service requests that a data path, by its name, does not have, in the order of the table.
func Shortfalls(s *lb.Service, path string) (out []Shortfall) {
	if s.Policies != nil {
		for _, p := range table {
			if !p.requested(s) {
				continue
			}
			if instead, reason := p.missing(s, path); reason != "" {
				out = append(out, Shortfall{p.Word, p.Shown(s.Policies), instead, reason})
			}
		}
	}
	if s.Weighted() && (path == "nftables" || path == "iptables") {
		out = append(out, Shortfall{"weight", "weights", "equal shares",
			fmt.Sprintf("data path %s has no weights", path)})
	}
	return out
}

// NeedsUserspace returns a policy by which a Service is to be served in user space; nil: there is none.
func NeedsUserspace(s *lb.Service) *Policy {
	if s.Policies == nil {
		return nil
	}
	i := slices.IndexFunc(table, func(p *Policy) bool {
		return p.Binds && p.Get(s.Policies) != "" && (p.misses == nil || p.misses(s, "userspace") == "")
	})
	if i < 0 {
		return nil
	}
	return table[i]
}

// KeptFrom returns a policy by which a Service is to be served in user space rather than by the data path of the mode,
// which does not have it; nil: there is none.
func KeptFrom(s *lb.Service, path string) *Policy {
	if s.Policies == nil {
		return nil
	}
	i := slices.IndexFunc(table, func(p *Policy) bool {
		if !p.Keeps || !p.requested(s) {
			return false
		}
		_, lacks := p.missing(s, path)
		_, misses := p.missing(s, "userspace")
		return lacks != "" && misses == ""
	})
	if i < 0 {
		return nil
	}
	return table[i]
}

// requested reports whether a Service requests something that a data path has to have.
func (p *Policy) requested(s *lb.Service) bool {
	requested := p.Get(s.Policies)
	return requested != "" && !slices.Contains(p.without, requested) && (p.With == "" || Find(p.With).requested(s))
}

// useful reports whether it is of use to a Service.
func (p *Policy) useful(s *lb.Service) bool { return p.Of == nil || slices.Contains(p.Of, s.Protocol) }

// missing returns why a Service on a data path does not have what it requests, and what there is instead.
func (p *Policy) missing(s *lb.Service, path string) (instead, reason string) {
	if p.misses != nil {
		if reason := p.misses(s, path); reason != "" {
			return "none", reason
		}
	}
	if !p.useful(s) {
		return "", ""
	}
	if p.lacks != nil {
		return p.lacks(s.Policies, path)
	}
	return onlyUserspace(path)
}
