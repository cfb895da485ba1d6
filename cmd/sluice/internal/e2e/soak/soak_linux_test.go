package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// The default is for every day: a soak is 20 minutes or more.
var (
	lasts = flag.Duration("soak", 0, "duration of the soak; 0 is 30 s in rows of 10 s, or 10 s of 5 s in short mode")
	table = flag.String("table", "", "file to write the table of the soak to, as Markdown")
)

// plan is the course of a soak.
type plan struct {
	total, row time.Duration // a row has one upgrade
	attack     time.Duration // that each attack lasts; the rest of its row is for what it leaves behind
}

func planned() plan {
	if *lasts == 0 && testing.Short() {
		return plan{10 * time.Second, 5 * time.Second, 2 * time.Second}
	} else if *lasts == 0 {
		return plan{30 * time.Second, 10 * time.Second, 5 * time.Second}
	}
	return plan{*lasts, time.Minute, 20 * time.Second}
}

// row is what a soak shows of one minute.
type row struct {
	minute                               int
	attack                               string
	requests, fresh, datagrams, messages count
	resident                             int64 // bytes
	descriptors, goroutines              int
	upgrade                              time.Duration // 0: it failed
	moves                                int           // of Services on data path auto
	dropped                              int64         // by the kernel for want of room, of all packets of this machine
}

// TestSoak runs everything at once for as long as asked: traffic of all protocols, endpoints that change each second,
// Services that come and go, or move between data paths, an upgrade and an attack in each row.
func TestSoak(t *testing.T) {
	testbed.Race(t)
	p := planned()
	s := newStage(t)
	s.start()
	var err error
	s.dropped, err = lab.Dropped()
	testbed.Check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	changing.Go(func() { s.change(ctx) })
	s.victims.start()
	s.victims.startMovers()
	defer func() {
		cancel()
		changing.Wait()
	}()
	var rows []row
	for n := range int(p.total / p.row) {
		atk := attacks[n%len(attacks)]
		r := s.minute(ctx, p, atk)
		r.minute = n + 1
		rows = append(rows, r)
		t.Logf("row %d\n%s%s", n+1, header, r)
	}
	text := header
	for _, r := range rows {
		text += r.String()
	}
	t.Logf("the soak:\n%s", text)
	if *table != "" {
		testbed.Check(t, errors.Join(os.MkdirAll(filepath.Dir(*table), 0o755), os.WriteFile(*table, []byte(text), 0o644)))
	}
	for _, problem := range verdict(rows) {
		t.Error(problem)
	}
	for name, m := range s.meters() {
		if m.first != nil {
			t.Errorf("%s: the first error: %v", name, m.first)
		}
	}
}

// minute runs one row of the soak.
func (s *stage) minute(ctx context.Context, p plan, atk attack) (r row) {
	r.attack = atk.name
	next := time.NewTimer(p.row)
	defer next.Stop()
	attacking, cancel := context.WithTimeout(ctx, p.attack)
	defer cancel()
	if err := atk.run(attacking, s.attacker); err != nil {
		s.Lab.T.Errorf("%s: %v", atk.name, err)
	}
	pause(ctx, (p.row-p.attack)/4)
	began := time.Now()
	if err := s.upgrade(); err != nil {
		s.Lab.T.Errorf("after %s: %v", atk.name, err)
	} else {
		r.upgrade = time.Since(began)
	}
	select {
	case <-ctx.Done():
	case <-next.C:
	}
	r.requests, r.fresh, r.datagrams, r.messages = s.requests.read(), s.fresh.read(), s.datagrams.read(), s.messages.read()
	pid := s.pid()
	files, err := testbed.OpenFiles(pid)
	testbed.Check(s.Lab.T, err)
	r.descriptors = len(files)
	r.resident, err = testbed.ResidentBytes(pid)
	testbed.Check(s.Lab.T, err)
	r.goroutines = int(s.Lab.Metric("go_goroutines"))
	dropped, err := lab.Dropped()
	testbed.Check(s.Lab.T, err)
	r.dropped, s.dropped = dropped-s.dropped, dropped
	moves := s.moved()
	r.moves, s.moves = moves-s.moves, moves
	return r
}

// change changes endpoints each second, and has a Service come and go.
func (s *stage) change(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for turn := 1; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.publish(turn)
		s.publishMovers(turn)
		if turn%5 == 0 {
			s.newcomer(turn)
		}
	}
}

// header is that of the table.
const header = "| minute | attack | requests | p99 ms | connections | p99 ms | datagrams | SCTP | errors | lost | " +
	"dropped by the kernel | RSS MB | descriptors | goroutines | upgrade ms | moves |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"

func (r row) String() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e6) }
	return fmt.Sprintf("| %d | %s | %d | %s | %d | %s | %d | %d | %d | %d | %d | %.1f | %d | %d | %s | %d |\n", r.minute, r.attack,
		r.requests.done, ms(r.requests.p99), r.fresh.done, ms(r.fresh.p99), r.datagrams.done, r.messages.done,
		r.requests.wrong+r.fresh.wrong+r.messages.wrong, r.datagrams.wrong, r.dropped, float64(r.resident)/1e6,
		r.descriptors, r.goroutines, ms(r.upgrade), r.moves)
}

// What the last quarter may have more than the first quarter after the first row, in which everything is new.
const (
	moreMemory      = 1.25
	moreDescriptors = 20
	moreGoroutines  = 10
)

// verdict says what is wrong with a soak: errors, or what grows.
func verdict(rows []row) (problems []string) {
	moves := 0
	for _, r := range rows {
		moves += r.moves
		for _, c := range []struct {
			name string
			count
		}{{"requests", r.requests}, {"connections", r.fresh}, {"datagrams", r.datagrams}, {"messages", r.messages}} {
			if c.wrong > 0 {
				problems = append(problems, fmt.Sprintf("minute %d, %s: %d of %d %s failed", r.minute, r.attack, c.wrong,
					c.wrong+c.done, c.name))
			}
			if c.done == 0 {
				problems = append(problems, fmt.Sprintf("minute %d, %s: no %s", r.minute, r.attack, c.name))
			}
		}
	}
	if moves == 0 {
		problems = append(problems, "no Service moved") // in a row of seconds each move may fall into an upgrade
	}
	if len(rows) < 8 {
		return problems // too short to show what grows
	}
	quarter := len(rows) / 4
	first, last := rows[1:1+quarter], rows[len(rows)-quarter:]
	grown := func(what string, of func(row) float64, most func(float64) float64) {
		if a, b := least(first, of), least(last, of); b > most(a) {
			problems = append(problems, fmt.Sprintf("%s grow: %.1f at first, %.1f in the end", what, a, b))
		}
	}
	grown("bytes of memory", func(r row) float64 { return float64(r.resident) },
		func(a float64) float64 { return a * moreMemory })
	grown("descriptors", func(r row) float64 { return float64(r.descriptors) },
		func(a float64) float64 { return a + moreDescriptors })
	grown("goroutines", func(r row) float64 { return float64(r.goroutines) },
		func(a float64) float64 { return a + moreGoroutines })
	return problems
}

// least returns the smallest value of some rows: what an attack leaves for a while is not what grows.
func least(rows []row, of func(row) float64) float64 {
	l := of(rows[0])
	for _, r := range rows[1:] {
		l = min(l, of(r))
	}
	return l
}

// A soak is bad if anything fails, or grows.
func TestVerdict(t *testing.T) {
	good := func() (rows []row) {
		c := count{done: 10}
		for range 12 {
			rows = append(rows, row{requests: c, fresh: c, datagrams: c, messages: c,
				resident: 30e6, descriptors: 100, goroutines: 20, moves: 5})
		}
		return rows
	}
	if problems := verdict(good()); problems != nil {
		t.Errorf("a good soak has problems: %q", problems)
	}
	late := func(spoil func(*row)) func([]row) {
		return func(rows []row) {
			for i := range rows[9:] {
				spoil(&rows[9+i])
			}
		}
	}
	for want, spoil := range map[string]func([]row){
		"1 of 11 requests failed": func(rows []row) { rows[3].requests.wrong = 1 },
		"no Service moved": func(rows []row) {
			for i := range rows {
				rows[i].moves = 0
			}
		},
		"no messages":          func(rows []row) { rows[5].messages.done = 0 },
		"bytes of memory grow": late(func(r *row) { r.resident = 50e6 }),
		"descriptors grow":     late(func(r *row) { r.descriptors = 150 }),
		"goroutines grow":      late(func(r *row) { r.goroutines = 50 }),
	} {
		rows := good()
		spoil(rows)
		if problems := verdict(rows); len(problems) != 1 || !strings.Contains(problems[0], want) {
			t.Errorf("problems %q, want one: %q", problems, want)
		}
	}
}
