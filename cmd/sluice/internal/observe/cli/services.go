package cli

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
)

func services(v *view) *cobra.Command {
	return v.ofServices(&cobra.Command{Use: "services [[NAMESPACE/]NAME[:PORT]]", Aliases: []string{"service", "svc"},
		Short: "List Services: addresses, data path, endpoints and counters of each port",
		Long: "Lists Service ports, one row for each address family. ENDPOINTS shows how many get new\n" +
			"connections, of all. ACTIVE, PICKS, IN and OUT count user space and the kernel; - stands for\n" +
			"what the kernel does not count. The kernel counts ACTIVE; the others need path ipvs or\n" +
			"--conntrack-accounting. PATH is the data path in effect, and the requested one if it differs.",
		RunE: func(c *cobra.Command, args []string) error {
			q, err := v.query(args)
			if err != nil {
				return err
			}
			all, err := api.All[api.Service](c.Context(), v.client(), "services", q)
			if err != nil {
				return err
			}
			return v.show(list(all), func() *table { return servicesTable(all, v.form == asWide) })
		}})
}

func servicesTable(all []api.Service, wide bool) *table {
	t := &table{wide: 8, header: []string{"NAMESPACE", "NAME", "PORT", "PROTOCOL", "ADDRESS", "PATH", "ENDPOINTS",
		"ACTIVE", "PICKS", "REFUSED", "IN", "OUT", "FAMILY", "FAILED", "HELD", "QUEUED", "UNHEALTHY", "AFFINITY",
		"POLICIES", "WHY", "CONDITIONS"}}
	for i := range all {
		s := &all[i]
		n := counters(s.Counted, s.Kernel)
		counted := []any{n[0], n[1], s.Refused.Sum(), n[2], n[3]}
		t.add(slices.Concat([]any{s.Namespace, s.Name, s.Port, s.Protocol, addresses(s.Addresses, wide), path(&s.Path),
			fmt.Sprintf("%d/%d", s.Eligible, s.Endpoints)}, counted, []any{s.Family, s.Failures, s.Held, s.Queued,
			s.Unhealthy, s.Affinity, policies(s.Policies), why(&s.Path), strings.Join(s.Wrong, "; ")})...)
	}
	return t
}

// counters are what is open, picks, and bytes from clients and to them, as far as they are counted.
func counters(c api.Counted, k *api.InKernel) [4]any {
	all, whole := c.Plus(k)
	out := [4]any{all.Active, all.Picks, size(all.BytesIn), size(all.BytesOut)}
	if whole {
		return out
	}
	if !k.Chosen && c.Picks == 0 {
		out[1] = "-"
	}
	if c.BytesIn+c.BytesOut == 0 {
		out[2], out[3] = "-", "-"
	}
	return out
}

// addresses are all of them, or the first.
func addresses(all []api.Address, wide bool) string {
	var out []string
	for _, a := range all {
		text := a.Address
		if a.Kind == "node port" {
			text = "*:" + text[strings.LastIndexByte(text, ':')+1:]
		}
		out = append(out, text)
	}
	if more := len(out) - 1; more > 0 && !wide {
		return fmt.Sprintf("%s +%d", out[0], more)
	}
	return strings.Join(out, ",")
}

func path(p *api.Path) string {
	if p.Writing {
		return strings.TrimLeft(p.Effective+" (writing)", " ")
	}
	if p.Fallback != "" && p.Effective != p.Requested {
		return fmt.Sprintf("%s (not %s)", p.Effective, p.Requested)
	}
	return p.Effective
}

func why(p *api.Path) string {
	if p.Writing {
		return "the kernel's rules for it are being written, and it waits for them"
	}
	if p.Fallback != "" {
		return p.Fallback
	}
	return p.Why
}

func policies(all []api.Policy) string {
	var out []string
	for _, p := range all {
		text := p.Name + "=" + p.Value
		if p.Missing != "" {
			text += " (missing)"
		}
		out = append(out, text)
	}
	return strings.Join(out, ",")
}

func endpoints(v *view) *cobra.Command {
	var unhealthy bool
	c := v.ofServices(&cobra.Command{Use: "endpoints [[NAMESPACE/]NAME[:PORT]]", Aliases: []string{"endpoint", "ep"},
		Short: "List endpoints: state, why they are ejected, and counters",
		Long: "Lists the endpoints of Service ports. STATE is ready, not-ready, terminating, ejected,\n" +
			"check-failing, maintenance (weight 0), drained (by sluice drain), loop (leads back to Sluice) or\n" +
			"gone (removed, with open connections). ACTIVE, PICKS, IN and OUT count user space and the\n" +
			"kernel, as sluice services does. With -o wide, IN KERNEL is the part of ACTIVE that the kernel\n" +
			"forwards.",
		RunE: func(c *cobra.Command, args []string) error {
			q, err := v.query(args)
			if err != nil {
				return err
			}
			if unhealthy {
				q.Set("unhealthy", "true")
			}
			all, err := api.All[api.Endpoint](c.Context(), v.client(), "endpoints", q)
			if err != nil {
				return err
			}
			return v.show(list(all), func() *table { return endpointsTable(all) })
		}})
	c.Flags().BoolVar(&unhealthy, "unhealthy", false, "only endpoints that are not ready, or are ejected")
	return c
}

func endpointsTable(all []api.Endpoint) *table {
	t := &table{wide: 6, header: []string{"NAMESPACE", "NAME", "PORT", "PROTOCOL", "ENDPOINT", "STATE", "ACTIVE",
		"PICKS", "FAILED", "IN", "OUT", "REASON", "IN KERNEL", "LOCAL", "WEIGHT", "HINTS", "EJECTED", "RETURNS"}}
	for i := range all {
		e := &all[i]
		reason, ejected, returns, kernel := "", "", "", uint64(0)
		n := counters(e.Counted, e.Kernel)
		if e.Kernel != nil {
			kernel = e.Kernel.Open
		}
		if e.State != api.Ready || !e.Eligible {
			reason = e.Reason
		}
		if e.Ejection != nil {
			ejected = fmt.Sprintf("%s ago", since(e.Ejection.Since))
			returns = fmt.Sprintf("in %s", time.Until(e.Ejection.Until).Round(time.Second))
		}
		t.add(e.Service.Namespace, e.Service.Name, e.Service.Port, e.Service.Protocol, e.Address, e.State, n[0], n[1],
			e.Failures, n[2], n[3], reason, kernel, e.Local, e.Weight, hints(e), ejected, returns)
	}
	return t
}

func hints(e *api.Endpoint) string {
	var out []string
	if e.NodeHint != "" {
		out = append(out, "node "+e.NodeHint)
	}
	if e.ZoneHint != "" {
		out = append(out, "zone "+e.ZoneHint)
	}
	return strings.Join(out, ", ")
}

func events(v *view) *cobra.Command {
	var tail int
	c := v.ofServices(&cobra.Command{Use: "events [[NAMESPACE/]NAME[:PORT]]", Aliases: []string{"event", "ev"},
		Short: "List what has changed and what was reported lately, the newest last",
		Long: "Lists the last 1,000 applied changes of Services and endpoints, and reports of the process. The\n" +
			"list survives hand-overs. When many things change together, one row sums them up.",
		RunE: func(c *cobra.Command, args []string) error {
			q, err := v.query(args)
			if err != nil {
				return err
			}
			if tail > 0 {
				q.Set("limit", fmt.Sprint(min(tail, journal.Size)))
			}
			var page api.Events
			if err := v.client().Get(c.Context(), "events", q, &page); err != nil {
				return err
			}
			return v.show(page.List, func() *table { return eventsTable(page.Items) })
		}})
	c.Flags().IntVar(&tail, "tail", 0, "only the last `NUMBER`; 0: all")
	return c
}

func eventsTable(all []api.Event) *table {
	t := &table{wide: 2, header: []string{"AGE", "TYPE", "REASON", "SERVICE", "NOTE", "TIME", "NUMBER"}}
	for i := range all {
		e := &all[i]
		kind, service := "Normal", ""
		if e.Warning {
			kind = "Warning"
		}
		if e.Service != "" {
			service = e.Namespace + "/" + e.Service
		}
		t.add(since(e.Time), kind, e.Reason, service, e.Note, e.Time.Format(time.RFC3339Nano), e.Number)
	}
	return t
}

func settings(v *view) *cobra.Command {
	var given bool
	c := v.flags(&cobra.Command{Use: "config [FLAG]", Args: cobra.MaximumNArgs(1),
		Short: "List the configuration in force, and where each value comes from",
		RunE: func(c *cobra.Command, args []string) error {
			all, err := api.All[api.Setting](c.Context(), v.client(), "config", url.Values{})
			if err != nil {
				return err
			}
			kept := []api.Setting{}
			for _, s := range all {
				if (len(args) == 0 || s.Name == strings.TrimLeft(args[0], "-")) && (!given || s.From != "default") {
					kept = append(kept, s)
				}
			}
			return v.show(list(kept), func() *table { return settingsTable(kept) })
		}})
	c.Flags().BoolVar(&given, "given", false, "only values that flags or the file set")
	return c
}

func settingsTable(all []api.Setting) *table {
	t := &table{wide: 1, header: []string{"NAME", "VALUE", "FROM", "FIELD"}}
	for _, s := range all {
		t.add(s.Name, s.Value, s.From, s.Field)
	}
	return t
}
