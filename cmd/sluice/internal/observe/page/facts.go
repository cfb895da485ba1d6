package page

import "strings"

// fact is one thing about the node.
type fact struct {
	name, value string
	details     []detail
	meter       bool // it is how many file descriptors are in use
}

// detail is what more there is to say of it.
type detail struct {
	text  string
	warns bool
	long  bool // it may have several lines
}

// facts are those of the first page.
func (f *frame) facts() []fact {
	s := &f.Status
	open := []detail{{text: "TCP " + count(s.Open.TCP)}, {text: "UDP " + count(s.Open.UDP)}}
	if s.Open.SCTP > 0 {
		open = append(open, detail{text: "SCTP " + count(s.Open.SCTP)})
	}
	open = warnings(open, s.Open.Held, "waiting for an endpoint")
	open = warnings(open, s.Open.Queued, "waiting for room")
	ports := warnings([]detail{{text: count(s.Services.Addresses) + " addresses"},
		{text: count(s.Services.Endpoints) + " endpoints"}}, s.Services.Ejected, "ejected")
	path := []detail{{text: "nothing is steered"}}
	if s.PacketFilter != nil {
		path[0].text = "steered by " + s.PacketFilter.Name
	}
	path = warnings(path, int64(s.Services.Fallbacks), "not as requested")
	path = warnings(path, int64(s.Services.Conflicts), "conflicts")
	path = warnings(path, int64(s.Services.Short), "without a socket")
	changes := "applied"
	if s.Sync.Waiting != nil {
		changes = "waiting"
	}
	applied := warnings([]detail{{text: ago(f.Now, s.Sync.Last)}, {text: count(s.Sync.Applied) + " in all"}},
		int64(s.Sync.Failures), "failures")
	source := fact{name: "Source", value: "Files", details: []detail{{text: strings.Join(s.Source.Manifests, ", "),
		long: true}, {text: plural(s.Source.Files, "file", "files")}}}
	source.details = warnings(source.details, int64(s.Source.Rejected), "rejected")
	if s.Source.APIServer != "" {
		source.value, source.details = "API server", []detail{{text: s.Source.APIServer, long: true},
			{text: "heard " + ago(f.Now, s.Source.Contact)}}
	}
	limit := "no limit"
	if s.Descriptors.Limit > 0 {
		limit = "of " + count(s.Descriptors.Limit)
	}
	handOvers := []detail{{text: "serving for " + span(f.Now, s.Serving)}}
	if s.HandOvers.Last != nil {
		handOvers = append([]detail{{text: "last " + ago(f.Now, s.HandOvers.Last)}}, handOvers...)
	}
	return []fact{{name: "Open", value: count(s.Counted.Active), details: open},
		{name: "Service ports", value: count(s.Services.Ports), details: ports},
		{name: "Path", value: s.Mode, details: path}, {name: "Changes", value: changes, details: applied}, source,
		{name: "Descriptors", value: count(s.Descriptors.Used), details: []detail{{text: limit}}, meter: true},
		{name: "Hand-overs", value: count(s.HandOvers.Count), details: handOvers}}
}

// warnings adds how many there are of what should not be, if there are any.
func warnings(to []detail, n int64, of string) []detail {
	if n == 0 {
		return to
	}
	return append(to, detail{text: count(n) + " " + of, warns: true})
}

// trouble says what an operator should look at; none: all is well.
func (f *frame) trouble() (out []string) {
	s := &f.Status
	switch {
	case !s.Sync.Healthy:
		out = append(out, "Changes wait to be applied since "+ago(f.Now, s.Sync.Waiting)+" and have failed: "+
			s.Sync.LastError)
	case s.Sync.LastError != "":
		out = append(out, "A change could not be applied yet: "+s.Sync.LastError)
	}
	if s.Source.Trouble != "" {
		out = append(out, "The API server cannot be read: "+s.Source.Trouble)
	}
	out = append(out, f.wrong()...)
	if d := s.Descriptors; d.Limit > 0 && d.Used > f.high() {
		out = append(out, "Nine tenths of the file descriptors are used.")
	}
	return out
}

// wrong says what is rejected, ignored or leads nowhere and is of no single Service, and how much more there is.
func (f *frame) wrong() (out []string) {
	const few = 5
	for _, c := range f.Status.Conditions {
		if c.Service == "" && len(out) < few {
			out = append(out, c.Text)
		}
	}
	more, also := f.Status.ConditionCount-len(out), ""
	if len(out) > 0 {
		also = "more "
	}
	if more > 0 {
		out = append(out, plural(more, also+"condition", also+"conditions")+
			": the rows of Services and sluice status name them.")
	}
	return out
}

// high is from how many file descriptors on there are too few left.
func (f *frame) high() int64 { return f.Status.Descriptors.Limit * 9 / 10 }
