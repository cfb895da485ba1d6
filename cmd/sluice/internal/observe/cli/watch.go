package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
)

const (
	watchWait     = 8 * time.Second  // for an event, which is less than a client waits for any answer
	watchPause    = time.Second      // between two requests when the process does not have one wait, or there is none
	watchPatience = 30 * time.Second // until another process is there
)

func watch(v *view) *cobra.Command {
	var service string
	var tail int
	c := v.ofServices(&cobra.Command{Use: "watch [[NAMESPACE/]NAME[:PORT]]",
		Short: "Follow what changes and what is reported, a line for each event",
		Long: "Prints events as they happen, in the form of sluice events, until you interrupt it. It continues\n" +
			"through hand-overs, and for 30 s without a process. With -o json each line is one object.",
		RunE: func(c *cobra.Command, args []string) error {
			if service != "" && len(args) > 0 {
				return fmt.Errorf("--service %s contradicts %s: give one of them", service, args[0])
			}
			if service != "" {
				args = []string{service}
			}
			q, err := v.query(args)
			if err != nil {
				return err
			}
			q.Set("limit", fmt.Sprint(max(0, min(tail, journal.Size))))
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if err := v.follow(ctx, q); ctx.Err() == nil {
				return err
			}
			return nil
		}})
	c.Flags().StringVar(&service, "service", "", "only events of this Service: `NAMESPACE/NAME`")
	c.Flags().IntVar(&tail, "tail", 10, "begin with the last `NUMBER` events")
	return c
}

// follow prints events until ctx ends.
func (v *view) follow(ctx context.Context, q url.Values) error {
	client, filtered := v.client(), q.Has("name") || q.Has("namespace")
	last, first, seen := uint64(0), true, time.Now()
	for {
		var page api.Events
		err := client.Get(ctx, "events", q, &page)
		failure, refused := errors.AsType[*api.Error](err)
		switch {
		case err == nil:
			seen = time.Now()
		case !first && errors.Is(err, api.ErrNotRunning) && time.Since(seen) < watchPatience,
			refused && failure.Code == http.StatusServiceUnavailable:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(watchPause):
				continue
			}
		default:
			return err
		}
		if page.Last < last { // another process, which has not taken over
			fmt.Fprintln(v.errs, "sluice watch: Sluice has been started anew")
			last = 0
			q.Set("after", "0")
			continue
		}
		if n := len(page.Items); n > 0 {
			if lost := page.Items[0].Number - last - 1; lost > 0 && !first && !filtered {
				fmt.Fprintf(v.errs, "sluice watch: %d events came too fast\n", lost)
			}
			last = page.Items[n-1].Number
		}
		last, first = max(last, page.Last), false
		for i := range page.Items {
			if err := v.event(&page.Items[i]); err != nil {
				return err
			}
		}
		q.Del("limit")
		q.Set("after", fmt.Sprint(last))
		q.Set("wait", watchWait.String())
	}
}

// event prints an event.
func (v *view) event(e *api.Event) error {
	switch v.form {
	case asJSON:
		var text strings.Builder
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("write an event: %w", err)
		}
		_, err := io.WriteString(v.out, inert(text.String(), false))
		return err
	case asYAML:
		if _, err := io.WriteString(v.out, "---\n"); err != nil {
			return err
		}
		return Print(v.out, e, true)
	}
	t := eventsTable([]api.Event{*e})
	row := t.rows[0] // AGE, TYPE, REASON, SERVICE, NOTE
	_, err := fmt.Fprintf(v.out, "%s  %-7s  %-18s  %-20s  %s\n", e.Time.Format(time.RFC3339), row[1], row[2], row[3],
		row[4])
	return err
}
