package journal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// newJournal returns a journal whose time stands still unless the test moves it, and its log.
func newJournal(t *testing.T) (*Journal, *time.Time, *observer.ObservedLogs) {
	core, lines := observer.New(zap.InfoLevel)
	j := New(zap.New(core))
	now := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
	j.now = func() time.Time { return now }
	t.Cleanup(j.Close)
	return j, &now, lines
}

// TestRing: the last entries stay, in order and numbered, and a note is cut between two runes.
func TestRing(t *testing.T) {
	j, _, lines := newJournal(t)
	for i := range Size + 5 {
		j.Remember(Entry{Reason: "Test", Note: fmt.Sprint(i)})
	}
	all := j.After(0, Size+5)
	if len(all) != Size || all[0].Number != 6 || all[0].Note != "5" || all[Size-1].Number != Size+5 {
		t.Errorf("%d entries from %+v to %+v", len(all), all[0], all[len(all)-1])
	}
	if got := j.After(Size+3, 10); len(got) != 2 || got[0].Number != Size+4 {
		t.Errorf("the last two are %+v", got)
	}
	if got := j.After(1<<63, 10); len(got) != 0 {
		t.Errorf("after the last there is %+v", got)
	}
	if lines.Len() != 0 {
		t.Errorf("what the log has already is written again: %+v", lines.All())
	}
	j.Report(Entry{Warning: true, Reason: "Long", Service: "web", Namespace: "default", Note: "x" +
		strings.Repeat("ä", 2000)})
	last := j.After(Size+5, 1)[0]
	if len(last.Note) != maxNote-0 && len(last.Note) != maxNote-1 || strings.ContainsRune(last.Note, '\uFFFD') {
		t.Errorf("a long note has %d bytes", len(last.Note))
	}
	if l := lines.All(); len(l) != 1 || l[0].Level != zap.WarnLevel || l[0].ContextMap()["service"] != "default/web" {
		t.Errorf("the log has %+v", l)
	}
	successor, _, _ := newJournal(t)
	successor.Remember(Entry{Reason: "Next"})
	successor.Seed(j.After(0, Size))
	if got := successor.After(0, Size); len(got) != Size || got[Size-1].Number != Size+7 || got[0] != j.After(7, 1)[0] {
		t.Errorf("the successor has %d entries from %+v to %+v", len(got), got[0], got[len(got)-1])
	}
}

func change(reason, service string) Change {
	return Change{Reason: reason, Message: "service changed", Namespace: "default", Service: service,
		Details: []Detail{{"endpoints_ready", 2}}}
}

// TestChangesAreBounded: a few changes are a line each, many are a summary, and what comes soon after is one more.
func TestChangesAreBounded(t *testing.T) {
	j, now, lines := newJournal(t)
	j.Changes([]Change{change(ServiceAdded, "a"), change(EndpointsChanged, "b")})
	if l := lines.TakeAll(); len(l) != 2 || l[0].ContextMap()["service"] != "default/a" ||
		l[0].ContextMap()["endpoints_ready"] != int64(2) {
		t.Fatalf("the log has %+v", l)
	}
	if e := j.After(0, 10); len(e) != 2 || e[1].Reason != EndpointsChanged || e[1].Note != "endpoints ready 2" {
		t.Errorf("the journal has %+v", e)
	}
	storm := slices.Repeat([]Change{change(ServiceAdded, "a")}, 10_000)
	j.Changes(storm)
	j.Changes(storm)
	j.Changes([]Change{change(NoEndpoints, "a")})
	if l := lines.TakeAll(); len(l) != 1 || l[0].Message != "services changed" ||
		l[0].ContextMap()["added"] != int64(10_000) {
		t.Fatalf("the log has %+v", l)
	}
	*now = now.Add(summaryEvery)
	j.Close()
	if l := lines.TakeAll(); len(l) != 1 || l[0].ContextMap()["added"] != int64(10_000) ||
		l[0].ContextMap()["without_endpoints"] != int64(1) || l[0].Level != zap.WarnLevel {
		t.Fatalf("the log has %+v", l)
	}
}

// TestLoss: a loss of all endpoints is a warning, unless the Service goes within seconds. It comes before what follows.
func TestLoss(t *testing.T) {
	said := func(lines *observer.ObservedLogs) (out []string) {
		for _, l := range lines.TakeAll() {
			out = append(out, fmt.Sprint(l.Level, " ", l.ContextMap()["service"], " ", l.ContextMap()["for"]))
		}
		return out
	}
	for _, x := range []struct {
		name string
		then func(j *Journal, now *time.Time)
		want []string
	}{
		{"removed", func(j *Journal, _ *time.Time) { j.Changes([]Change{change(ServiceRemoved, "a")}) },
			[]string{"info default/a 3s", "info default/a <nil>"}},
		{"back", func(j *Journal, _ *time.Time) { j.Changes([]Change{change(EndpointsChanged, "a")}) },
			[]string{"warn default/a 3s", "info default/a <nil>"}},
		{"another removed", func(j *Journal, now *time.Time) {
			j.Changes([]Change{change(ServiceRemoved, "b")})
			*now = now.Add(lossPatience)
			j.Changes(nil)
		}, []string{"info default/b <nil>", "warn default/a 13s"}},
		{"being removed", func(j *Journal, now *time.Time) {
			j.Leaving = func(namespace, service string) bool { return namespace == "default" && service == "a" }
			*now = now.Add(lossPatience)
			j.Changes(nil)
		}, []string{"info default/a 13s"}},
		{"removed with many", func(j *Journal, _ *time.Time) {
			j.Changes(append(slices.Repeat([]Change{change(ServiceAdded, "b")}, many), change(ServiceRemoved, "a")))
		}, []string{"info default/a 3s", "info <nil> <nil>"}},
		{"end", func(j *Journal, _ *time.Time) { j.Close() }, []string{"warn default/a 3s"}},
		{"hand-over", func(j *Journal, _ *time.Time) { j.Halt(0) }, []string{"warn default/a 3s"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			j, now, lines := newJournal(t)
			lost := change(NoEndpoints, "a")
			lost.Warning = true
			j.Changes([]Change{lost})
			*now = now.Add(3 * time.Second)
			if got := said(lines); got != nil {
				t.Errorf("the log has %q already", got)
			}
			x.then(j, now)
			if got := said(lines); !slices.Equal(got, x.want) {
				t.Errorf("the log has %q, want %q", got, x.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // nothing else happens
		core, lines := observer.New(zap.InfoLevel)
		j := New(zap.New(core))
		defer j.Close()
		j.Changes(slices.Repeat([]Change{change(ServiceAdded, "b")}, 2*many))
		j.Changes(slices.Repeat([]Change{change(ServiceAdded, "b")}, 2*many))
		time.Sleep(summaryEvery / 2) // of the bubble: nothing happens until a timer ends
		j.pending = summary{}
		j.Changes([]Change{{Reason: NoEndpoints, Namespace: "default", Service: "a", Warning: true}})
		j.Changes(slices.Repeat([]Change{change(ServiceAdded, "b")}, 2*many))
		time.Sleep(2 * lossPatience) // the same
		want := []string{"info <nil> <nil>", "info <nil> <nil>", "warn default/a 10s"}
		if got := said(lines); !slices.Equal(got, want) {
			t.Errorf("the log has %q, want %q", got, want)
		}
	})
}

// TestChurn: changes one by one are written up to a burst and then as often as a token comes.
func TestChurn(t *testing.T) {
	j, now, lines := newJournal(t)
	for range 2 * burst {
		j.Changes([]Change{change(EndpointsChanged, "a")})
	}
	if n := lines.Len(); n != burst+1 { // the first that was too much is summed up at once
		t.Errorf("%d lines of %d changes, want %d", n, 2*burst, burst+1)
	}
	j.Halt(0) // it sums up, as the timer does
	j.Resume()
	lines.TakeAll()
	*now = now.Add(3 * refill)
	for range 3 {
		j.Changes([]Change{change(EndpointsChanged, "a")})
	}
	if n := lines.Len(); n != 3 {
		t.Errorf("%d lines of 3 changes", n)
	}
}

// TestWait: who waits hears of the next entry, of one that is there already at once, and of nothing when the time is
// over; and only so many wait.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, _, _ := newJournal(t)
		j.Remember(Entry{Reason: "First"})
		if !j.Wait(t.Context(), 0) || !j.Wait(t.Context(), 7) {
			t.Error("what is there, or is to begin anew, is waited for")
		}
		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan bool, maxWaiters)
		for i, over := range []func(){func() { j.Remember(Entry{Reason: "Second"}) }, cancel} {
			for range maxWaiters {
				go func() { heard <- j.Wait(ctx, uint64(1+i)) }()
			}
			synctest.Wait()
			if j.Wait(ctx, uint64(1+i)) {
				t.Error("one more than may wait does")
			}
			over()
			for range maxWaiters {
				if !<-heard {
					t.Error("one that waited is sent away")
				}
			}
		}
		if j.Last() != 2 {
			t.Errorf("the last is %d", j.Last())
		}
	})
}

// TestHalt: nothing is remembered that another process does not have, unless that does not take over after all.
func TestHalt(t *testing.T) {
	j, _, _ := newJournal(t)
	for _, reason := range []string{"a", "b", "c"} {
		j.Remember(Entry{Reason: reason})
	}
	j.Changes(slices.Repeat([]Change{change(ServiceAdded, "a")}, 2*many))
	j.Changes(slices.Repeat([]Change{change(ServiceAdded, "a")}, 2*many)) // whose summary is due
	rest := j.Halt(2)
	if len(rest) != 3 || rest[0].Reason != "c" || rest[2].Note != "added 40" {
		t.Errorf("the rest is %+v", rest)
	}
	j.Remember(Entry{Reason: "late"})
	if j.Last() != 5 {
		t.Errorf("the last is %d", j.Last())
	}
	j.Resume()
	j.Remember(Entry{Reason: "later"})
	if all := j.After(5, 10); len(all) != 2 || all[0].Reason != "late" || all[1].Number != 7 {
		t.Errorf("afterwards there are %+v", all)
	}
}
