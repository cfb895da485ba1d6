package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

// topRows is how many rows there are where no terminal says how high it is.
const topRows = 20

// rates is what one row of top counts in a second.
type rates struct {
	name             string
	active           uint64
	eligible, all    int
	picks, failures  float64
	refused, in, out float64
}

// orders are what top sorts by.
var orders = map[string]func(r *rates) float64{
	"connections": func(r *rates) float64 { return r.picks },
	"bytes":       func(r *rates) float64 { return r.in + r.out },
	"active":      func(r *rates) float64 { return float64(r.active) },
	"failures":    func(r *rates) float64 { return r.failures + r.refused },
}

func top(v *view) *cobra.Command {
	interval, sort, once := 2*time.Second, "connections", false
	c := v.ofServices(&cobra.Command{Use: "top [[NAMESPACE/]NAME[:PORT]]",
		Short: "Show the busiest Services, in place, by their rates",
		Long: "Shows the process in one line, and the Service ports with the highest rates in the last\n" +
			"interval. On a terminal it refreshes in place until you interrupt it; elsewhere it appends rows.",
		RunE: func(c *cobra.Command, args []string) error {
			q, err := v.query(args)
			if err != nil {
				return err
			}
			if orders[sort] == nil {
				return fmt.Errorf("--sort %q is unknown: give connections, bytes, active or failures", sort)
			}
			if interval < 100*time.Millisecond {
				return fmt.Errorf("--interval %s is too short: give 100ms or more", interval)
			}
			if v.form != asTable {
				return errors.New("top has no other form than table: ask sluice services for others")
			}
			return v.top(c.Context(), q, interval, sort, once)
		}})
	c.Flags().DurationVar(&interval, "interval", interval, "`TIME` between two refreshes")
	c.Flags().StringVar(&sort, "sort", sort, "order by connections, bytes, active or failures")
	c.Flags().BoolVar(&once, "once", false, "end after the first interval")
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"connections", "bytes", "active",
		"failures"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// top looks again and again. A process that hands over is looked at anew.
func (v *view) top(ctx context.Context, q url.Values, interval time.Duration, sort string, once bool) error {
	client := v.client()
	before, began, err := sample(ctx, client, q)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
		now, at, err := sample(ctx, client, q)
		var s api.Status
		if err == nil {
			err = client.Get(ctx, "status", nil, &s)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		clear, rows, columns := screen(v.out)
		text := new(strings.Builder)
		fmt.Fprintf(text, "%s, process %d: TCP %d, UDP flows %d, SCTP %d open; waiting %d; descriptors %d\n\n",
			clean(s.Node), s.PID, s.Open.TCP, s.Open.UDP, s.Open.SCTP, s.Open.Held+s.Open.Queued, s.Descriptors.Used)
		list := ratesOf(before, now, at.Sub(began).Seconds(), orders[sort])
		if err := topTable(list[:min(len(list), rows)]).print(text, false, v.noHeaders); err != nil {
			return err
		}
		if _, err := io.WriteString(v.out, clear+narrow(text.String(), columns)); err != nil || once {
			return err
		}
		before, began = now, at
	}
}

// sample asks for all Services, and says when.
func sample(ctx context.Context, c *api.Client, q url.Values) (map[api.ID]api.Service, time.Time, error) {
	all, err := api.All[api.Service](ctx, c, "services", q)
	byID := make(map[api.ID]api.Service, len(all))
	for i := range all {
		byID[all[i].ID] = all[i]
	}
	return byID, time.Now(), err
}

// ratesOf compares two samples. One that has come since, or whose counters begin anew, is counted from 0.
func ratesOf(before, now map[api.ID]api.Service, seconds float64, order func(*rates) float64) (out []rates) {
	for id, s := range now {
		was := before[id]
		n, _ := s.Counted.Plus(s.Kernel)
		then, _ := was.Counted.Plus(was.Kernel)
		per := func(is, was uint64) float64 {
			if is < was {
				was = 0
			}
			return float64(is-was) / seconds
		}
		name := id.Namespace + "/" + id.Name
		if id.Port != "" {
			name += ":" + id.Port
		}
		if id.Family == "IPv6" {
			name += " (IPv6)"
		}
		out = append(out, rates{name: name, active: n.Active, eligible: s.Eligible, all: s.Endpoints,
			picks: per(n.Picks, then.Picks), failures: per(n.Failures, then.Failures),
			refused: per(s.Refused.Sum(), was.Refused.Sum()), in: per(n.BytesIn, then.BytesIn),
			out: per(n.BytesOut, then.BytesOut)})
	}
	slices.SortFunc(out, func(a, b rates) int {
		return cmp.Or(cmp.Compare(order(&b), order(&a)), cmp.Compare(b.active, a.active),
			strings.Compare(a.name, b.name))
	})
	return out
}

func topTable(all []rates) *table {
	t := &table{header: []string{"SERVICE", "ACTIVE", "ENDPOINTS", "PICKS/S", "FAILED/S", "REFUSED/S", "IN/S", "OUT/S"}}
	for i := range all {
		r := &all[i]
		t.add(r.name, r.active, fmt.Sprintf("%d/%d", r.eligible, r.all), rate(r.picks), rate(r.failures),
			rate(r.refused), size(uint64(r.in)), size(uint64(r.out)))
	}
	return t
}

func rate(n float64) string {
	if n < 10 {
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// narrow cuts lines to so many columns, so that none takes two; 0: as many as there are.
func narrow(text string, columns int) string {
	if columns <= 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, end := strings.CutSuffix(line, "\n")
		if all := []rune(line); len(all) > columns {
			line = string(all[:columns])
		}
		b.WriteString(line)
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// screen returns what clears a terminal, and how many rows and columns there is room for; for what is no terminal
// nothing, a usual number, and 0.
func screen(w io.Writer) (clear string, rows, columns int) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return "", topRows, 0
	}
	columns, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		columns, height = 0, topRows
	}
	const around = 4 // the line about the process, an empty one, the header, and the cursor's
	return "\x1b[H\x1b[2J", max(1, height-around), columns
}
