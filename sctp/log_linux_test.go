package sctp

import (
	"testing"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// TestLog: each association is logged once when it ends, with how it has ended and what it has passed, also after it
// has moved to another process, and its times are counted.
func TestLog(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 2}, false, settings{})
		accepted := l.serve(l.Pods[0])[0]
		logged := 0
		expect := func(what string, end lb.End, is func(e *look.Ended) bool) {
			t.Helper()
			var all []look.Ended
			l.eventually(what+" is logged", func(Stats) bool {
				all = l.order(order{Do: "log"}).Ended
				return len(all) > logged
			})
			logged++
			if e := &all[len(all)-1]; len(all) != logged || e.End != end || e.Protocol != lb.SCTP || e.Service.Name != "s" ||
				e.Client.Addr() != l.Client.Addr(l.ipv6) || e.Asked != l.frontend || !is(e) {
				t.Errorf("%s is logged as %+v, the last of %d lines; want end %s, of %d", what, e, len(all), end, logged)
			}
		}
		pair := func() (client, server peer) {
			t.Helper()
			client = l.dial(l.Client)
			server = l.accept(accepted)
			ask(t, client, server, message{data: []byte("hello")})
			ask(t, server, client, message{data: []byte("welcome")})
			return client, server
		}
		pod := l.Pods[0].At(l.ipv6, port)
		passed := func(e *look.Ended) bool {
			return e.Backend == pod && e.In == 5 && e.Out == 7 && e.Connect > 0 && e.FirstByte >= e.Connect &&
				e.Age >= e.FirstByte && e.Wait == 0 && e.Failed == 0 && e.Why.String() == "rr"
		}
		client, server := pair()
		report(t, client.shutdown())
		expectEnd(t, server, "the server")
		expect("one that ends as it should", lb.Normal, passed)
		client, _ = pair()
		client.abort()
		expect("one that its client aborts", lb.ClientData, passed)
		_, server = pair()
		server.abort()
		expect("one that its endpoint aborts", lb.ServerData, passed)

		l.backends(0, l.Pods[1]) // where nothing listens
		refused, err := l.tryDial(l.Client, 0, patience)
		expect("one that the endpoint refuses", lb.ServerConnect, func(e *look.Ended) bool {
			return e.Failed > 0 && len(e.Tried) == 1 && !e.Backend.IsValid() && e.Connect < 0 && e.FirstByte < 0
		})
		if err == nil { // with the socket engine, which accepts before it dials
			refused.abort()
		}
		const answered, spoken = 3, 3
		if times := l.order(order{Do: "log"}).Times; times != [balancer.Measures]uint64{answered, spoken, answered} {
			t.Errorf("the times count %v", times)
		}

		l.backends(0, l.Pods[0])
		client, server = pair()
		l.order(order{Do: "upgrade", Loops: 3})
		ask(t, client, server, message{data: []byte("more")})
		ask(t, server, client, message{data: []byte("again")})
		report(t, client.shutdown())
		expectEnd(t, server, "the server")
		expect("one of another process", lb.Normal, func(e *look.Ended) bool {
			return e.Backend == pod && e.In == 9 && e.Out == 12 && e.Connect < 0 && e.FirstByte < 0 && e.Age > 0 &&
				e.Why.String() == "rr"
		})
		if times := l.order(order{Do: "log"}).Times; times != [balancer.Measures]uint64{0, 0, 1} {
			t.Errorf("after a hand-over the times count %v", times)
		}
	})
}
