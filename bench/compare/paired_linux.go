package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"

	"github.com/sluice-lb/sluice/bench/stats"
)

// Of each start, every build has so many turns of so many requests.
const (
	pairedTurns    = 100
	pairedRequests = 200
)

const pairedRequest = "GET / HTTP/1.1\r\nHost: sluice.test\r\n\r\n"

// twin is one of the builds that run side by side, with what it took in each start, in us per request.
type twin struct {
	system
	*lab
	*running
	conns  []net.Conn
	answer []byte // as long as one
	took   []float64
}

// pair measures builds more closely than rounds can: all run at once, each in a lab of its own, and get requests by
// turns of some milliseconds, so that what else happens on the machine happens to all of them.
func (o options) pair(ctx context.Context, w io.Writer) (twins []*twin, err error) {
	for _, s := range slices.Concat(systems[:1], o.also) {
		twins = append(twins, &twin{system: s})
	}
	if o.rounds == 0 {
		o.rounds = 10
	}
	for n := range o.rounds {
		if err := o.start(ctx, twins); err != nil {
			return nil, err
		}
		fmt.Fprintf(w, "start %d:", n+1)
		for _, t := range twins {
			fmt.Fprintf(w, "  %s %.2f us", t.system.name, t.took[n])
		}
		fmt.Fprintln(w)
	}
	for _, t := range twins[1:] {
		mean, deviation := stats.Mean(stats.Ratios(t.took, twins[0].took))
		fmt.Fprintf(w, "%s / %s: %.3f, standard error %.3f\n", t.system.name, twins[0].system.name, mean, deviation)
	}
	return twins, nil
}

// start starts every build once, in any order, and adds what each takes.
func (o options) start(ctx context.Context, twins []*twin) error {
	defer func() {
		for _, t := range twins {
			t.end()
		}
	}()
	for _, i := range rand.Perm(len(twins)) {
		if err := twins[i].begin(ctx, o.sluice, o.paired); err != nil {
			return fmt.Errorf("start %s: %w", twins[i].system.name, err)
		}
	}
	if err := twins[0].cores.leave(); err != nil {
		return err
	}
	took := make([][]float64, len(twins))
	for range pairedTurns {
		for _, i := range rand.Perm(len(twins)) {
			turn, err := twins[i].turn()
			if err != nil {
				return fmt.Errorf("ask %s: %w", twins[i].system.name, err)
			}
			took[i] = append(took[i], turn)
		}
	}
	for i, t := range twins {
		t.took = append(t.took, stats.Median(took[i]))
	}
	return nil
}

func (t *twin) begin(ctx context.Context, sluice string, conns int) (err error) {
	if t.lab, err = newLab(ctx, sluice); err != nil {
		return err
	}
	if err = t.cores.comeBack(); err != nil { // the next lab chooses among all
		return err
	}
	if t.running, err = t.system.start(ctx, t.lab); err != nil {
		return err
	}
	for range conns {
		c, err := t.tb.Client.Dial(ctx, "tcp", t.services[0].addr())
		if err != nil {
			return err
		}
		t.conns = append(t.conns, c)
		if _, err := io.WriteString(c, pairedRequest); err != nil {
			return err
		}
		t.answer = make([]byte, 1024)
		n, err := c.Read(t.answer)
		if err != nil {
			return err
		}
		t.answer = t.answer[:n]
	}
	return nil
}

// turn makes requests, on all connections at once, and returns the processor time of each in us.
func (t *twin) turn() (float64, error) {
	before, err := measureUsage(t.pid(), t.cores.proxy)
	if err != nil {
		return 0, err
	}
	made := 0
	for ; made < pairedRequests; made += len(t.conns) {
		for _, c := range t.conns {
			if _, err := io.WriteString(c, pairedRequest); err != nil {
				return 0, err
			}
		}
		for _, c := range t.conns {
			if _, err := io.ReadFull(c, t.answer); err != nil {
				return 0, err
			}
		}
	}
	after, err := measureUsage(t.pid(), t.cores.proxy)
	return float64(after.minus(before).process.Nanoseconds()) / 1000 / float64(made), err
}

func (t *twin) end() {
	for _, c := range t.conns {
		_ = c.Close()
	}
	if t.running != nil {
		_ = t.stop()
	}
	if t.lab != nil {
		t.lab.close()
	}
	t.conns, t.running, t.lab = nil, nil, nil
}
