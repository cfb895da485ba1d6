package load

import (
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// runner is a client of one kind.
type runner interface {
	start() error          // opens what is to be open
	poll() error           // handles events, for up to a sweep's time
	sweep(now int64)       // looks for what has taken too long
	warm(since int64) bool // whether the time to measure may begin
	finish(result *Result) // adds what only it knows
}

// meter counts for a client, from the begin of the time to measure on.
type meter struct {
	config AskConfig
	in     io.Reader
	out    io.Writer
	result Result
	whole  *hdrhistogram.Histogram // ns from a question to its answer
	first  *hdrhistogram.Histogram // ns from there to the first byte of it
}

// newHistogram returns one for times of up to an hour, to two digits: 36 kB.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Hour), 2) }

// newMeter returns the meter of a client.
func newMeter(c AskConfig, in io.Reader, out io.Writer) *meter {
	return &meter{config: c, in: in, out: out, whole: newHistogram(), first: newHistogram()}
}

// run measures.
func (m *meter) run(r runner) error {
	if err := r.start(); err != nil {
		return err
	}
	began, swept := now(), now()
	measuring := false
	ended := m.end()
	for !ended(measuring, began) {
		if err := r.poll(); err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		t := now()
		if t-swept >= int64(sweepEvery) {
			r.sweep(t)
			swept = t
		}
		if !measuring && r.warm(began) {
			measuring, began = true, t
			warming := m.result
			m.result = Result{FirstError: warming.FirstError, Errors: warming.Errors}
			m.whole.Reset()
			m.first.Reset()
			fmt.Fprintln(m.out, Begin)
		}
	}
	m.result.Seconds = time.Duration(now() - began).Seconds()
	us := func(ns int64) float64 { return float64(ns) / 1000 }
	m.result.P50, m.result.P99 = us(m.whole.ValueAtQuantile(50)), us(m.whole.ValueAtQuantile(99))
	m.result.P999 = us(m.whole.ValueAtQuantile(99.9))
	m.result.Max = us(m.whole.Max())
	m.result.First50, m.result.First99 = us(m.first.ValueAtQuantile(50)), us(m.first.ValueAtQuantile(99))
	r.finish(&m.result)
	return nil
}

// end returns a function that reports when to stop: after the duration, or, for idle connections and
// without one, when standard input ends. The goroutine ends with it, or with the process.
func (m *meter) end() func(measuring bool, began int64) bool {
	if m.config.Kind != Idle && m.config.Duration > 0 {
		return func(measuring bool, began int64) bool {
			return measuring && now()-began >= int64(m.config.Duration)
		}
	}
	var closed atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, m.in) // its error is an end, too
		closed.Store(true)
	}()
	return func(bool, int64) bool { return closed.Load() }
}

// failed counts an error.
func (m *meter) failed(err error) {
	m.result.Errors++
	if m.result.FirstError == "" {
		m.result.FirstError = err.Error()
	}
}

// warmedUp reports whether the configured time has passed since a moment.
func (m *meter) warmedUp(since int64) bool { return now()-since >= int64(m.config.Warm) }

// addresses reads the targets.
func addresses(c AskConfig) ([]netip.AddrPort, error) {
	var addrs []netip.AddrPort
	for _, text := range c.Addrs {
		a, err := netip.ParseAddrPort(text)
		if err != nil || !a.Addr().Is4() {
			return nil, fmt.Errorf("use address %q: not an IPv4 address and a port", text)
		}
		addrs = append(addrs, a)
	}
	if len(addrs) == 0 || c.Number < 1 {
		return nil, fmt.Errorf("use %d addresses and %d connections: at least one is needed of each", len(addrs),
			c.Number)
	}
	return addrs, nil
}
