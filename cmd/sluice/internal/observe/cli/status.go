package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

func status(v *view) *cobra.Command {
	return v.flags(&cobra.Command{Use: "status", Args: cobra.NoArgs,
		Short: "Show the running process, what it serves, and whether it is well",
		RunE: func(c *cobra.Command, _ []string) error {
			var s api.Status
			if err := v.client().Get(c.Context(), "status", nil, &s); err != nil {
				return err
			}
			v.noHeaders = true
			return v.show(s, func() *table { return statusTable(&s) })
		}})
}

func statusTable(s *api.Status) *table {
	t := &table{header: []string{"", ""}}
	row := func(name, format string, args ...any) { t.add(name+":", fmt.Sprintf(format, args...)) }
	version := s.Version
	if s.Commit != "" {
		version += ", commit " + s.Commit
	}
	row("Version", "%s", version)
	row("Node", "%s", s.Node)
	row("Process", "%d, for %s", s.PID, since(s.Started))
	row("Serving", "for %s%s", since(s.Serving), handOvers(&s.HandOvers))
	row("Mode", "%s; %s; %d loops", s.Mode, strings.Join(s.Families, ", "), s.Loops)
	row("Packet filter", "%s", chosen(s.PacketFilter, "none"))
	row("SCTP engine", "%s", chosen(s.SCTPEngine, "none yet"))
	row("Source", "%s", source(&s.Source))
	row("Changes", "%s", sync(&s.Sync))
	n := &s.Services
	row("Services", "%d ports at %d addresses, %d endpoints, %d of them ejected, %d drained", n.Ports, n.Addresses,
		n.Endpoints, n.Ejected, n.Drained)
	row("Data paths", "%s%s", paths(n.Paths), troubles(n))
	row("Open now", "TCP %d, UDP flows %d, SCTP %d, waiting for an endpoint %d, for room at one %d", s.Open.TCP,
		s.Open.UDP, s.Open.SCTP, s.Open.Held, s.Open.Queued)
	row("Counted", "%d connections and flows to endpoints, %d failed, %s bytes in, %s bytes out", s.Counted.Picks,
		s.Counted.Failures, size(s.Counted.BytesIn), size(s.Counted.BytesOut))
	limit := "no limit"
	if s.Descriptors.Limit > 0 {
		limit = fmt.Sprintf("of %d", s.Descriptors.Limit)
	}
	row("Descriptors", "%d %s", s.Descriptors.Used, limit)
	if s.ConditionCount == 0 {
		row("Conditions", "none: nothing is rejected, ignored or leads nowhere")
		return t
	}
	row("Conditions", "%d", s.ConditionCount)
	for _, c := range s.Conditions {
		t.add("  "+c.Reason, fmt.Sprintf("%s (for %s)", c.Text, since(c.Since)))
	}
	if more := s.ConditionCount - len(s.Conditions); more > 0 {
		t.add("", fmt.Sprintf("and %d more", more))
	}
	return t
}

func handOvers(h *api.HandOvers) string {
	text := "; no hand-over"
	if h.Count > 0 && h.Last != nil {
		text = fmt.Sprintf("; hand-overs %d, the last %s ago", h.Count, since(*h.Last))
		if h.From != 0 {
			text += fmt.Sprintf(" from process %d", h.From)
		}
	}
	if h.Failed > 0 {
		text += fmt.Sprintf("; %d failed", h.Failed)
	}
	return text
}

func chosen(c *api.Chosen, none string) string {
	switch {
	case c == nil:
		return none
	case c.Requested:
		return c.Name + " (requested)"
	}
	return c.Name + " (detected)"
}

func source(s *api.Source) string {
	if s.APIServer == "" {
		return fmt.Sprintf("manifests %s: %d files, %d of them rejected", strings.Join(s.Manifests, ", "), s.Files,
			s.Rejected)
	}
	text := s.APIServer
	if s.Contact != nil {
		text += fmt.Sprintf(", which has answered or sent something %s ago", since(*s.Contact))
	}
	if s.Trouble != "" {
		text += "; now " + s.Trouble
	}
	return text
}

func sync(s *api.Sync) string {
	text := fmt.Sprintf("%d applied, %d attempts failed", s.Applied, s.Failures)
	if s.Last != nil {
		text += fmt.Sprintf(", the last %s ago", since(*s.Last))
	}
	if s.Waiting != nil {
		text += fmt.Sprintf("; one waits for %s", since(*s.Waiting))
	}
	if s.LastError != "" {
		text += ": " + s.LastError
	}
	if !s.Healthy {
		text = "NOT HEALTHY: " + text
	}
	return text
}

func paths(counts map[string]int) string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s %d", path, counts[path]))
	}
	return strings.Join(out, ", ")
}

func troubles(n *api.ServiceCounts) (text string) {
	if n.Fallbacks > 0 {
		text += fmt.Sprintf("; %d not on the path requested", n.Fallbacks)
	}
	if n.Conflicts > 0 {
		text += fmt.Sprintf("; %d addresses that another program has", n.Conflicts)
	}
	if n.Short > 0 {
		text += fmt.Sprintf("; %d addresses not served, since file descriptors are few", n.Short)
	}
	return text
}
