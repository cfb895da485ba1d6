package ipvs

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestTemplates reads a list as the kernel prints it.
func TestTemplates(t *testing.T) {
	const heading = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n"
	const list = heading +
		"TCP C0000264 8D3A 0A600050 0050 0AF4010A 1F90 FIN_WAIT        101\n" +
		"TCP C0000264 0000 0A600050 0050 0AF4010A 1F90 ASSURED       10790\n" +
		"TCP C0000265 0000 C000020A 7580 0AF4010B 1F90 NONE          10800\n" +
		"TCP C0000266 0000 0A600051 0050 0AF4010B 1F90 NONE          10800\n" +
		"UDP C0000267 0000 0A600050 0050 0AF4010B 1F90 NONE          10800\n" +
		"TCP 2001:0db8:0000:0000:0000:0000:0000:0001 0000 2001:0db8:0096:0000:0000:0000:0000:0001 0050 2001:0db8:0244:0000:0000:0000:0000:0001 1F90 NONE          10799\n"
	s := simple("web", "10.96.0.80", 80, lb.TCP)
	s.AffinityTimeout = 10800e9
	also(&s, netip.MustParseAddrPort("0.0.0.0:30080"), lb.NodePort, false)
	six := simple("six", "2001:db8:96::1", 80, lb.TCP)
	six.AffinityTimeout = 10800e9
	client := func(addr, backend string, age time.Duration) lb.Client {
		return lb.Client{
			Addr: netip.MustParseAddr(addr), Backend: netip.MustParseAddrPort(backend), LastUsed: 1e15 - int64(age),
		}
	}
	for _, test := range []struct {
		of   lb.Service
		want []lb.Client
	}{
		{s, []lb.Client{
			client("192.0.2.100", "10.244.1.10:8080", 10*time.Second), client("192.0.2.101", "10.244.1.11:8080", 0),
		}},
		{six, []lb.Client{client("2001:db8::1", "[2001:db8:244::1]:8080", time.Second)}},
	} {
		have, err := templates(strings.NewReader(list), &test.of, 1e15)
		if err != nil || !slices.Equal(have, test.want) {
			t.Errorf("%s: %v, %v, want %v", test.of.ID, have, err, test.want)
		}
	}
	for _, bad := range []string{"TCP C0000264\n", "TCP C00002 0000 0A600050 0050 0AF4010A 1F90 NONE 1\n", "TCP C0000264 0000 0A600050 0050 0AF4010A 1F90 NONE x\n"} {
		if _, err := templates(strings.NewReader(heading+bad), &s, 0); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// TestClients: a client of a Service with affinity is listed with its backend.
func TestClients(t *testing.T) {
	n := newNode(t, testbed.Config{})
	for i, v6 := range []bool{false, true} {
		s := simple("web", vip(v6, 80).String(), 80, lb.TCP, n.Serving(len(n.Pods), lb.TCP, v6, 8080)...)
		s.AffinityTimeout = int64(3 * time.Hour)
		n.Sync(s)
		pod, _, _ := strings.Cut(ask(n.Client, lb.TCP, s.Addresses[0].Addr), " ")
		const now = int64(4 * time.Hour)
		n.Node.DoT(n.T, func() error {
			clients, err := n.engines[i].Clients(t.Context(), &s, now)
			if err != nil {
				return err
			}
			if len(clients) != 1 {
				t.Fatalf("%d clients are remembered", len(clients))
			}
			c := clients[0]
			at := slices.IndexFunc(n.Pods, func(h *testbed.Host) bool { return h.Name == pod })
			if at < 0 || s.Backends[at].Addr != c.Backend || c.Addr != n.Client.Addr(v6) ||
				c.LastUsed > now || c.LastUsed < now-int64(time.Minute) {
				t.Errorf("a client that was at %s is remembered as %+v", pod, c)
			}
			if err := n.engines[i].Remember(t.Context(), &s, clients); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("Remember = %v", err)
			}
			return nil
		})
	}
}
