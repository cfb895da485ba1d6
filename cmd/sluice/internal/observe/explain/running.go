package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/cli"
	"github.com/sluice-lb/sluice/lb"
)

// protocols are those that an address may be asked by.
var protocols = []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP}

// target is what is asked about: an address, or a Service.
type target struct {
	protocol lb.Protocol // 0: any that is served there
	addr     netip.AddrPort
	service  lb.Name
	port     string // of the Service, its name or number; empty: all
}

// target reads the arguments after the client.
func (q *query) target() (t target, err error) {
	switch len(q.subject) {
	case 1:
		if t.addr, err = netip.ParseAddrPort(q.subject[0]); err == nil {
			return t, nil
		}
		namespace, name, ok := strings.Cut(q.subject[0], "/")
		name, t.port, _ = strings.Cut(name, ":")
		if !ok || name == "" || strings.Contains(name, "/") {
			return t, fmt.Errorf("%q is neither a Service nor an address: give default/web or 10.96.0.80:80, for "+
				"example", q.subject[0])
		}
		t.service = lb.Name{Namespace: namespace, Name: name}
		return t, nil
	case 2:
		named := func(p lb.Protocol) bool { return strings.EqualFold(p.String(), q.subject[0]) }
		i := slices.IndexFunc(protocols, named)
		t.addr, err = netip.ParseAddrPort(q.subject[1])
		if i < 0 || err != nil {
			return t, fmt.Errorf("%q %q is not a protocol and an address: give tcp 10.96.0.80:80, for example",
				q.subject[0], q.subject[1])
		}
		t.protocol = protocols[i]
		return t, nil
	}
	return t, errors.New("name a Service, or a protocol and an address")
}

// ask writes what the running process says.
func (q *query) ask(w io.Writer) error {
	if q.form != "text" && q.form != "json" && q.form != "yaml" {
		return fmt.Errorf("--output %q is unknown: give text, json or yaml", q.form)
	}
	t, err := q.target()
	if err != nil {
		return err
	}
	v := url.Values{}
	if q.client != "" {
		v.Set("client", q.client)
	}
	if t.addr.IsValid() {
		v.Set("address", t.addr.String())
	} else {
		v.Set("namespace", t.service.Namespace)
		v.Set("name", t.service.Name)
		if t.port != "" {
			v.Set("port", t.port)
		}
	}
	if t.protocol != 0 {
		v.Set("protocol", t.protocol.String())
	}
	var answer api.List[api.Explanation]
	err = api.NewClient(q.socket).Get(context.Background(), "explain", v, &answer)
	switch {
	case errors.Is(err, api.ErrNotRunning):
		return fmt.Errorf("%w (or give --manifests with a file or folder, to compute what a process would do)", err)
	case err != nil:
		return err
	case q.form != "text":
		return cli.Print(w, answer, q.form == "yaml")
	}
	for i := range answer.Items {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprint(w, cli.Lines(text(&answer.Items[i])))
	}
	return nil
}

// text is what is said of an address.
func text(e *api.Explanation) string {
	var b strings.Builder
	b.WriteString(e.Text)
	if e.Path != nil {
		fmt.Fprintf(&b, "data path %s: %s\n", e.Path.Effective, e.Path.Why)
		if e.Path.Fallback != "" {
			fmt.Fprintf(&b, "  fallback: %s\n", e.Path.Fallback)
		}
	}
	for _, c := range []struct {
		what string
		is   *api.Chosen
	}{{"packet filter", e.Filter}, {"SCTP engine", e.Engine}} {
		switch {
		case c.is != nil && c.is.Requested:
			fmt.Fprintf(&b, "  %s %s: requested\n", c.what, c.is.Name)
		case c.is != nil:
			fmt.Fprintf(&b, "  %s %s: detected\n", c.what, c.is.Name)
		}
	}
	for _, p := range e.Policies {
		fmt.Fprintf(&b, "policy %s: %s (%s)\n", p.Name, p.Value, p.From)
		if p.Missing != "" {
			fmt.Fprintf(&b, "  missing: %s\n", p.Missing)
		}
	}
	return b.String()
}
