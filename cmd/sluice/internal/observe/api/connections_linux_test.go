package api

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// TestConnections: the connections of real servers come in pages, each once, and are summed up by client.
func TestConnections(t *testing.T) {
	s := sourcesOf(t, 1, 1)
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	loops, err := eventloop.NewGroup(2)
	if err != nil {
		t.Fatal(err)
	}
	defer loops.Close()
	server := &tcp.Server{Config: tcp.Config{Loops: loops, LB: s.LB}}
	defer server.Close()
	addr, err := server.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := lb.NewTable([]*lb.Service{{ID: lb.ID{Namespace: "n", Name: "web", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: addr}},
		Backends:  []lb.Backend{{Addr: netip.MustParseAddrPort(backend.Addr().String()), Ready: true}}}}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	s.LB.Update(table)
	s.Loops = 2
	s.Servers = []Server{server, &udp.Server{Loops: loops, LB: s.LB},
		&sctp.Server{Config: sctp.Config{Config: tcp.Config{Loops: loops, LB: s.LB}}}}
	const n = firstPage + 15
	var want []string
	for range n {
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b, err := backend.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if _, err := io.WriteString(b, "hello"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		want = append(want, c.LocalAddr().String())
	}
	c := serve(t, s)
	pages := 0
	var got []string
	err = Each(t.Context(), c, "connections", url.Values{"limit": {"7"}, "name": {"web"}},
		func(page []Connection) error {
			pages++
			for _, c := range page {
				got = append(got, c.Client)
				if c.Address != addr.String() || c.Endpoint != backend.Addr().String() ||
					c.BytesOut == nil || *c.BytesOut != 5 || c.Path != "userspace" {
					t.Errorf("one is %+v", c)
				}
			}
			return nil
		})
	slices.Sort(want)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) || pages < n/7 {
		t.Errorf("%d pages have %q, want %q, %v", pages, got, want, err)
	}
	var page List[Connection]
	if err := c.Get(t.Context(), "connections", nil, &page); err != nil || len(page.Items) != firstPage ||
		page.Continue == "" {
		t.Errorf("the first page has %d, continues at %q, %v", len(page.Items), page.Continue, err)
	}
	// A page of the process before begins nowhere in this one, and the whole list is asked for anew.
	of := func(process int) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"Process":%d,"Server":0,"Loop":0,"From":0}`, process))
	}
	err = c.Get(t.Context(), "connections", url.Values{"continue": {of(1)}}, &page)
	if failure, ok := errors.AsType[*Error](err); !ok || failure.Code != http.StatusGone {
		t.Errorf("a page of another process: %v", err)
	}
	if err := c.Get(t.Context(), "connections", url.Values{"continue": {of(os.Getpid())}}, &page); err != nil {
		t.Errorf("a page of this process: %v", err)
	}
	all, err := All[Connection](t.Context(), c, "connections", url.Values{"continue": {of(1)}})
	if err != nil || len(all) != n {
		t.Errorf("a list that another process began has %d, %v", len(all), err)
	}
	none, err := All[Connection](t.Context(), c, "connections", url.Values{"protocol": {"UDP"}})
	if err != nil || len(none) != 0 {
		t.Errorf("UDP has %+v, %v", none, err)
	}
	var talkers Talkers
	err = c.Get(t.Context(), "clients", url.Values{"endpoint": {backend.Addr().String()}}, &talkers)
	if err != nil || talkers.Clients != 1 || talkers.Partial || talkers.Others != 0 || len(talkers.Items) != 1 ||
		talkers.Items[0].Address != "127.0.0.1" || talkers.Items[0].Connections != n ||
		talkers.Items[0].BytesOut != 5*n || talkers.Items[0].Services != 1 {
		t.Errorf("the clients are %+v, %v", talkers, err)
	}
}

// TestPrefix: an IPv4 address in IPv6 is that address.
func TestPrefix(t *testing.T) {
	for text, want := range map[string]string{"10.0.0.1": "10.0.0.1/32", "::ffff:10.0.0.1": "10.0.0.1/32",
		"::ffff:10.0.0.0/104": "10.0.0.0/8", "10.0.0.0/8": "10.0.0.0/8", "fd00::/8": "fd00::/8", "::/0": "::/0"} {
		if got, err := prefix(text); err != nil || got.String() != want {
			t.Errorf("%s is %v, %v, want %s", text, got, err, want)
		}
	}
}
