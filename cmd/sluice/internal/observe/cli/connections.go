package cli

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/look"
)

// wanted are the flags by which connections are chosen.
type wanted struct{ client, endpoint, protocol, state string }

func (w *wanted) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&w.client, "client", "",
		"only clients with this `ADDRESS` or in this range, like 10.0.0.1 or 10.0.0.0/24")
	f.StringVar(&w.endpoint, "endpoint", "", "only endpoints with this `ADDRESS`, like 10.1.0.1 or 10.1.0.1:80")
	f.StringVar(&w.protocol, "protocol", "", "only this `PROTOCOL`: tcp, udp or sctp")
	f.StringVar(&w.state, "state", "", "only this `STATE`")
	var states []string
	for _, s := range look.States {
		states = append(states, string(s))
	}
	for name, all := range map[string][]string{"protocol": {"tcp", "udp", "sctp"}, "state": states} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
	}
}

func (w *wanted) give(q url.Values) {
	give(q, "client", w.client)
	give(q, "endpoint", w.endpoint)
	give(q, "protocol", w.protocol)
	give(q, "state", w.state)
}

func connections(v *view) *cobra.Command {
	var w wanted
	c := v.ofServices(&cobra.Command{Use: "connections [[NAMESPACE/]NAME[:PORT]]",
		Aliases: []string{"connection", "conn"},
		Short:   "List open connections, associations and flows: client, Service, endpoint, age and bytes",
		Long: "Lists open TCP connections, SCTP associations and UDP flows. STATE is dialling, held (waits for\n" +
			"an endpoint), queued (waits for room at an endpoint), established, half-closed, unreplied (a\n" +
			"flow without an answer), leaving (a flow whose endpoint was removed) or closing. Rows of kernel\n" +
			"data paths come last, from conntrack; PATH names the path. Their bytes include IP headers. Bytes\n" +
			"and AGE need --conntrack-accounting there, and IDLE is in whole seconds.",
		RunE: func(c *cobra.Command, args []string) error {
			q, err := v.query(args)
			if err != nil {
				return err
			}
			w.give(q)
			if v.form != asTable && v.form != asWide {
				all, err := api.All[api.Connection](c.Context(), v.client(), "connections", q)
				if err != nil {
					return err
				}
				return v.show(list(all), nil)
			}
			t := connectionsTable(nil)
			err = api.Each(c.Context(), v.client(), "connections", q, func(page []api.Connection) error {
				t.rows = connectionsTable(page).rows
				return t.stream(v.out, v.form == asWide, v.noHeaders)
			})
			if err != nil || t.printed > 0 {
				return err
			}
			return v.show(nil, func() *table { return t })
		}})
	w.flags(c)
	return c
}

func connectionsTable(all []api.Connection) *table {
	t := &table{wide: 5, header: []string{"PROTOCOL", "CLIENT", "ADDRESS", "SERVICE", "ENDPOINT", "PATH", "STATE",
		"AGE", "IN", "OUT", "LOOP", "IDLE", "FAILED", "RTT", "RETRANSMITS"}}
	for i := range all {
		c := &all[i]
		service, age, idle, in, out, loop, rtt := "", "", "", "", "", "", ""
		if c.Service != nil {
			service = c.Service.Namespace + "/" + c.Service.Name
			if c.Service.Port != "" {
				service += ":" + c.Service.Port
			}
		}
		if c.Idle != nil {
			idle = seconds(*c.Idle)
		}
		if c.Age != nil {
			age = seconds(*c.Age)
		}
		if c.BytesIn != nil && c.BytesOut != nil {
			in, out = size(*c.BytesIn), size(*c.BytesOut)
		}
		if c.Loop != nil {
			loop = fmt.Sprint(*c.Loop)
		}
		if c.RTT > 0 {
			rtt = time.Duration(c.RTT * float64(time.Second)).Round(time.Microsecond).String()
		}
		t.add(c.Protocol, c.Client, c.Address, service, c.Endpoint, c.Path, c.State, age, in, out, loop, idle, c.Failed,
			rtt, c.Retransmits)
	}
	return t
}

// seconds is a length of time, as kubectl has it.
func seconds(s float64) string {
	return duration.HumanDuration(time.Duration(s * float64(time.Second)))
}

func clients(v *view) *cobra.Command {
	var w wanted
	var limit int
	var sort string
	c := v.ofServices(&cobra.Command{Use: "clients [[NAMESPACE/]NAME[:PORT]]", Aliases: []string{"client"},
		Short: "List the client addresses with the most open connections, or bytes",
		Long: "Lists client addresses with their open connections, associations and flows, and the bytes of\n" +
			"these. On kernel data paths bytes need --conntrack-accounting. The list tells 65,536 addresses\n" +
			"apart.",
		RunE: func(c *cobra.Command, args []string) error {
			q, err := v.query(args)
			if err != nil {
				return err
			}
			w.give(q)
			q.Set("limit", fmt.Sprint(limit))
			q.Set("sort", sort)
			var all api.Talkers
			if err := v.client().Get(c.Context(), "clients", q, &all); err != nil {
				return err
			}
			return v.show(all, func() *table { return clientsTable(&all) })
		}})
	w.flags(c)
	c.Flags().IntVar(&limit, "limit", 20, "`NUMBER` of clients, 1,000 at the most")
	c.Flags().StringVar(&sort, "sort", "connections", "order by connections or bytes")
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"connections", "bytes"},
		cobra.ShellCompDirectiveNoFileComp))
	return c
}

func clientsTable(all *api.Talkers) *table {
	t := &table{header: []string{"CLIENT", "CONNECTIONS", "IN", "OUT", "SERVICES", "OLDEST"}}
	for i := range all.Items {
		c := &all.Items[i]
		t.add(c.Address, c.Connections, size(c.BytesIn), size(c.BytesOut), c.Services, seconds(c.Oldest))
	}
	return t
}
