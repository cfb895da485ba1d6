package track

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

// Tracker chooses endpoints and follows flows. Set the exported fields before Start.
type Tracker struct {
	Balancer *lb.Balancer
	Watch    *flows.Watch
	Now      func() int64                         // the clock of the Balancer
	Number   func(endpoint netip.AddrPort) uint32 // by which the kernel knows an endpoint; 0: it does not yet

	// Chose gets why the Balancer has chosen the endpoint of a flow whose Service has flows logged, before the kernel
	// has the answer. It must not wait. nil: it is of no use.
	Chose func(protocol lb.Protocol, client, asked netip.AddrPort, why lb.Why)

	// Shares bound what one Service and one client have of the flows that are known.
	Shares shares.Shares

	flowTable
	services  services
	reachable reachable
	cannot    error // why flows are not followed

	events *flows.Subscription
	conns  []*conntrack.Conn
	reader kernelTable // to read the whole table
	finder kernelTable // to find and delete single entries meanwhile

	wanted chan struct{} // has a value when the table is to be read
	lost   chan struct{} // has a value when events were lost
	stop   chan struct{} // nil: nothing runs
	all    sync.WaitGroup

	readings uint32                  // how many have begun; of the goroutine that reads
	current  atomic.Pointer[reading] // nil: none is under way

	answered, refused, silent, retried atomic.Uint64
}

// kernelTable is conntrack's table: a conntrack.Conn, or a script's.
type kernelTable interface {
	flows.Reader
	Find(protocol lb.Protocol, client, asked netip.AddrPort) (e flows.Entry, ok bool, err error)
	Delete(e *flows.Entry) (ok bool, err error)
}

// Stats count what is known of flows that the kernel forwards.
type Stats struct {
	Known    int64 // now
	Rejected Rejections
	Answered uint64
	Refused  uint64 // by a reset as the first answer, or left so by the client where packets are not counted
	Silent   uint64 // endpoints that have not answered in time
	Retried  uint64 // of these, those whose client gets another endpoint when it sends again
}

// errNoEvents says what a kernel setting means.
var errNoEvents = errors.New("conntrack has no events (net.netfilter.nf_conntrack_events is 0)")

// Start begins to follow flows, in the network namespace of the calling thread. Cannot says whether it does. Rules that
// ask are to be written afterwards: a kernel may have events of those flows only that began while anyone listened.
func (t *Tracker) Start() {
	if t.wanted == nil {
		t.wake, t.wanted, t.lost = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	}
	if t.cannot = t.listen(); t.cannot != nil {
		t.closeSockets()
		return
	}
	t.stop = make(chan struct{})
	t.all.Go(t.probeLoop)
	t.all.Go(t.readLoop)
}

func (t *Tracker) listen() (err error) {
	if on, err := netfilter.ReadNumber("/proc/sys/net/netfilter/nf_conntrack_events"); err == nil && on == 0 {
		return errNoEvents
	}
	for _, to := range []*kernelTable{&t.reader, &t.finder} {
		c, err := conntrack.Open()
		if err != nil {
			return err
		}
		*to, t.conns = c, append(t.conns, c)
	}
	if t.events, err = t.Watch.Subscribe(t.handle); err == nil {
		err = t.events.Want(conntrack.Want{Kinds: conntrack.Turn | conntrack.Destroy | conntrack.Lost,
			Of: conntrack.Translated})
	}
	if err != nil {
		return fmt.Errorf("follow flows: %w", err)
	}
	return nil
}

func (t *Tracker) closeSockets() (err error) {
	if t.events != nil {
		err = t.events.Close()
	}
	for _, c := range t.conns {
		c.Close()
	}
	t.events, t.conns = nil, nil
	return err
}

// Close stops what Start has begun, and ends all flows: the process that follows them next reads the table.
func (t *Tracker) Close() error {
	if t.stop == nil {
		return nil
	}
	close(t.stop)
	t.all.Wait()
	t.stop = nil
	err := t.closeSockets()
	t.endAll(func(flow) bool { return true })
	return err
}

// Cannot returns why nothing is known of the flows that the Tracker has chosen for: they are not in flight then. nil:
// they are followed.
func (t *Tracker) Cannot() error { return t.cannot }

// RequestReading asks for a reading of conntrack's table, which finds flows that began before. It does not wait.
func (t *Tracker) RequestReading() { flows.Notify(t.wanted) }

// pause waits for a time. False: the Tracker ends.
func (t *Tracker) pause(d time.Duration) bool {
	select {
	case <-t.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// Stats returns the counters. Any goroutine may call it.
func (t *Tracker) Stats() Stats {
	return Stats{Known: t.count.Load(), Rejected: t.rejected.load(), Answered: t.answered.Load(),
		Refused: t.refused.Load(), Silent: t.silent.Load(), Retried: t.retried.Load()}
}

// Choose chooses the endpoint of a flow by its first packet and returns its number; 0: the kernel does not have it yet.
// It allocates nothing.
func (t *Tracker) Choose(f *lb.Flow) (number uint32, err error) {
	k := keyOfFlow(f)
	one, known := t.take(&k)
	var before netip.AddrPort
	if known && one.state != retrying { // its end was not reported yet, and its ports are used again
		before = one.backend()
		one.end()
		one = flow{}
	}
	of := *f
	of.Why = &one.why
	if one.failed != nil {
		of.Tried = &one.failed.tried
	}
	choice, err := t.Balancer.Pick(of)
	if one.begin(choice, f.Now); err == nil {
		number = t.Number(one.backend())
	}
	if number == 0 || k.isUDP() && !one.isFollowed() {
		one.end()
		return number, err
	}
	one.replaced = k.isUDP() && one.backend() == before
	t.keep(&k, &one)
	return number, nil
}

// At returns the endpoint of a flow, if it is followed.
func (t *Tracker) At(f *lb.Flow) (endpoint netip.AddrPort, ok bool) {
	k := keyOfFlow(f)
	if one, known := t.find(&k); known {
		return one.backend(), true
	}
	return endpoint, false
}

// keep keeps a flow that has an endpoint. One that has no room is not in flight.
func (t *Tracker) keep(k *flowKey, one *flow) {
	logs, _ := one.choice.Policies().Logs()
	why, service := one.why, one.service() // a flow that ends has neither; lb.NotKnown: the kernel has chosen
	if t.cannot != nil {
		one.end()
	} else if rejected := t.put(k, one, &t.Shares); rejected != none {
		if rejected == serviceShare {
			t.Balancer.ExceedsShare(service, 1)
		}
		one.end()
	}
	if logs && why != lb.NotKnown && t.Chose != nil {
		client, asked := k.ends()
		t.Chose(k.protocol, client, asked, why)
	}
}
