package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

const (
	supportTimeout = time.Minute      // for all parts together
	partTimeout    = 10 * time.Second // for one
	largestPart    = 16 << 20         // bytes of one; the rest is cut off
	mostPages      = 20               // of a list
)

func support(v *view) *cobra.Command {
	var file string
	c := v.flags(&cobra.Command{Use: "support", Args: cobra.NoArgs,
		Short: "Write an archive of what there is to know, for a report of a problem",
		Long: "Writes a tar.gz of mode 0600. It has the output of status, services, endpoints, events, drain\n" +
			"and config, the metrics, Sluice's rules, sets and virtual servers, conntrack's figures, kernel\n" +
			"settings, and limits and memory of the process. What cannot be read is a line of errors.txt. The\n" +
			"archive has names and addresses of Services, endpoints and nodes. It has no credentials and no\n" +
			"traffic.",
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), supportTimeout)
			defer cancel()
			if file == "" {
				host, _ := os.Hostname()
				file = fmt.Sprintf("sluice-support-%s-%s.tar.gz", host, time.Now().UTC().Format("20060102-150405"))
			}
			written, err := writeBundle(ctx, file, v.client())
			if err != nil {
				return err
			}
			if err := v.show(list(written), func() *table { return partsTable(written) }); err != nil {
				return err
			}
			fmt.Fprintf(v.errs, "wrote %s: look through it before you send it, since names and addresses of Services, "+
				"endpoints and nodes are in it\n", clean(file))
			return nil
		}})
	c.Flags().StringVarP(&file, "file", "f", "",
		"`FILE` to write, which must not exist; empty: a name by host and time")
	return c
}

// part is a file of the archive.
type part struct {
	name string
	get  func(context.Context) ([]byte, error)
}

// Written is what there is of a part.
type Written struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	Error string `json:"error,omitempty"`
}

func partsTable(all []Written) *table {
	t := &table{header: []string{"PART", "BYTES", "ERROR"}}
	for _, w := range all {
		t.add(w.Name, w.Bytes, w.Error)
	}
	return t
}

// writeBundle writes the archive, which goes again if it cannot be finished.
func writeBundle(ctx context.Context, file string, c *api.Client) (all []Written, err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write the archive: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(file)
		}
	}()
	zipped := gzip.NewWriter(f)
	archive := tar.NewWriter(zipped)
	folder, start := strings.TrimSuffix(baseName(file), ".tar.gz"), time.Now()
	put := func(name string, text []byte) error {
		err := archive.WriteHeader(&tar.Header{Name: folder + "/" + name, Mode: 0o600, Size: int64(len(text)),
			ModTime: start})
		if err == nil {
			_, err = archive.Write(text)
		}
		if err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
		return nil
	}
	var status api.Status
	known := c.Get(ctx, "status", nil, &status) == nil
	var failures bytes.Buffer
	for _, p := range parts(c, &status, known) {
		limited, cancel := context.WithTimeout(ctx, partTimeout)
		text, err := p.get(limited)
		cancel()
		if len(text) > largestPart {
			text, err = text[:largestPart], errors.Join(err, fmt.Errorf("only the first %d bytes", largestPart))
		}
		w := Written{Name: p.name, Bytes: len(text)}
		if err != nil {
			w.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
			fmt.Fprintf(&failures, "%s: %s\n", p.name, w.Error)
		}
		all = append(all, w)
		if len(text) > 0 {
			if err := put(p.name, text); err != nil {
				return nil, err
			}
		}
	}
	if err := put("errors.txt", failures.Bytes()); err != nil {
		return nil, err
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		return nil, fmt.Errorf("write the archive: %w", err)
	}
	return all, nil
}

// baseName is the last part of a path, for the folder in the archive.
func baseName(path string) string {
	return path[strings.LastIndexAny(path, `/\`)+1:]
}

// parts are all of them. Those of the process are there if its status is known.
func parts(c *api.Client, status *api.Status, known bool) []part {
	all := []part{
		{"status.json", resource[api.Status](c, "status")},
		{"services.json", pages[api.Service](c, "services")},
		{"endpoints.json", pages[api.Endpoint](c, "endpoints")},
		{"events.json", pages[api.Event](c, "events")},
		{"drains.json", pages[api.Drain](c, "drains")},
		{"config.json", func(ctx context.Context) ([]byte, error) {
			settings, err := configOf(ctx, c)
			return printed(list(settings), err)
		}},
		{"metrics.txt", func(ctx context.Context) ([]byte, error) { return metricsPage(ctx, c) }},
		{"program.txt", func(context.Context) ([]byte, error) {
			return fmt.Appendf(nil, "the running process: %s\nthis program: %s %s/%s\n", status.Version,
				runtime.Version(), runtime.GOOS, runtime.GOARCH), nil
		}},
	}
	pid := 0
	if known {
		pid = status.PID
	}
	return append(all, hostParts(pid)...)
}

// resource asks for one.
func resource[T any](c *api.Client, name string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		var answer T
		err := c.Get(ctx, name, nil, &answer)
		return printed(answer, err)
	}
}

// pages asks for a list, up to a number of pages.
func pages[T any](c *api.Client, name string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		all, q := []T{}, url.Values{"limit": {"1000"}}
		if name == "drains" {
			q = url.Values{}
		}
		for range mostPages {
			var page api.List[T]
			if err := c.Get(ctx, name, q, &page); err != nil {
				return printed(list(all), err)
			}
			if all = append(all, page.Items...); page.Continue == "" {
				return printed(list(all), nil)
			}
			q.Set("continue", page.Continue)
		}
		return printed(list(all), fmt.Errorf("only the first %d pages", mostPages))
	}
}

// printed is an answer as JSON, and why there is no more of it.
func printed(answer any, err error) ([]byte, error) {
	if errors.Is(err, api.ErrNotRunning) {
		return nil, err
	}
	var out bytes.Buffer
	err = errors.Join(err, Print(&out, answer, false))
	return out.Bytes(), err
}

// configOf returns the configuration in force. Files with credentials are named in it, and not read.
func configOf(ctx context.Context, c *api.Client) ([]api.Setting, error) {
	return api.All[api.Setting](ctx, c, "config", nil)
}

// limited reads what is not longer than a part may be, and a byte more if it is.
func limited(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, largestPart+1)) }
