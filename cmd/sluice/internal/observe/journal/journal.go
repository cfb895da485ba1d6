package journal

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// Size is how many entries are remembered.
	Size = 1000

	// maxNote is how long a note may be, in bytes: errors name what others have written.
	maxNote = 1024

	// burst entries of Services may be written at once, and then one each refill.
	burst  = 50
	refill = 200 * time.Millisecond

	// many entries at once are summed up at once.
	many = 20

	// maxWaiters bounds who waits for the next entry.
	maxWaiters = 64

	// summaryEvery is the shortest time between two summaries.
	summaryEvery = 10 * time.Second

	// lossPatience is how long a loss of all endpoints waits for the removal of its Service, which makes it no warning:
	// a namespace that is deleted loses its pods first.
	lossPatience = 10 * time.Second
)

// Entry is something that has happened.
type Entry struct {
	Number    uint64    `json:"number"`              // counted through hand-overs
	Time      time.Time `json:"time"`                // when it happened
	Warning   bool      `json:"warning,omitempty"`   // true: an operator should look
	Reason    string    `json:"reason"`              // one word for programs, such as ServiceAdded
	Namespace string    `json:"namespace,omitempty"` // of the Service
	Service   string    `json:"service,omitempty"`   // empty: the node, or many Services
	Note      string    `json:"note,omitempty"`      // for people
}

// Change is an entry of a Service that has changed.
type Change struct {
	Warning            bool
	Reason             string // ServiceAdded
	Message            string // of the log: "service added"
	Namespace, Service string
	Details            []Detail
}

// Detail is a fact of a change, under the key that the log has for it.
type Detail struct {
	Key   string
	Value any
}

// Journal is what is remembered. Make it by New.
type Journal struct {
	// Leaving reports whether a Service is being removed. Set before the first change; may be nil.
	Leaving func(namespace, service string) bool

	log *zap.Logger
	now func() time.Time

	mu      sync.Mutex // guards the following
	entries [Size]Entry
	next    uint64 // number of the next entry
	first   uint64 // that is remembered
	tokens  float64
	filled  time.Time // when tokens were counted
	pending summary
	losses  []loss      // the oldest first
	summed  time.Time   // when the last summary was written
	due     *time.Timer // writes the next summary or loss; nil: none waits
	closed  bool
	changed chan struct{} // closed with the next entry; nil: none waits
	waiting int
	halted  bool
	held    []Entry // since Halt
}

// loss is a change by which a Service has lost its endpoints, until it is known whether the Service goes, too.
type loss struct {
	Change
	since time.Time
}

// New returns an empty journal.
func New(log *zap.Logger) *Journal {
	return &Journal{log: log, now: time.Now, tokens: burst, next: 1, first: 1}
}

// Report remembers an entry and writes it to the log as an event.
func (j *Journal) Report(e Entry) {
	fields := []zap.Field{zap.String("reason", e.Reason)}
	if e.Service != "" {
		fields = append(fields, zap.String("service", e.Namespace+"/"+e.Service))
	}
	if e.Note != "" {
		fields = append(fields, zap.String("note", e.Note))
	}
	j.log.Log(level(e.Warning), "event", fields...)
	j.Remember(e)
}

// Remember remembers an entry that the log has already.
func (j *Journal) Remember(e Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.add(e)
}

// add numbers and remembers an entry. The caller holds j.mu.
func (j *Journal) add(e Entry) {
	e.Number, e.Time = j.next, j.now()
	if len(e.Note) > maxNote {
		e.Note = strings.ToValidUTF8(e.Note[:maxNote], "")
	}
	switch {
	case !j.halted:
		j.put(e)
	case len(j.held) < Size:
		j.held = append(j.held, e)
	}
}

func (j *Journal) put(e Entry) {
	j.entries[e.Number%Size] = e
	j.next = e.Number + 1
	if j.next-j.first > Size {
		j.first = j.next - Size
	}
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// Wait waits until there is an entry whose number is above after, or until ctx ends; not at all if after is of another
// journal. false: it does not, since too many wait already.
func (j *Journal) Wait(ctx context.Context, after uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case after != j.next-1:
		return true
	case j.waiting >= maxWaiters:
		return false
	case j.changed == nil:
		j.changed = make(chan struct{})
	}
	changed := j.changed
	j.waiting++
	j.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
	j.mu.Lock()
	j.waiting--
	return true
}

// Halt returns entries whose numbers are above after, a summary that is due included, and remembers no others until
// Resume: for a process that takes over, with which numbers go on.
func (j *Journal) Halt(after uint64) []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.flush()
	j.halted = true
	return j.after(after, Size)
}

// Resume remembers what has come since Halt. It does nothing if there was none.
func (j *Journal) Resume() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.halted = false
	for _, e := range j.held {
		e.Number = j.next
		j.put(e)
	}
	j.held = nil
}

// Last returns the number of the last entry; 0: there is none.
func (j *Journal) Last() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - 1
}

// Changes remembers changes of Services and writes them to the log: each, or if they are too many a summary.
func (j *Journal) Changes(changes []Change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		j.endLoss(c)
		switch {
		case len(changes) > many || j.pending.count > 0 || !j.take():
			j.pending.add(c)
		case c.Reason == NoEndpoints && !j.closed:
			j.losses = append(j.losses, loss{*c, j.now()})
		default:
			j.write(c)
		}
	}
	j.writeDue()
}

// endLoss writes the loss of a Service that changes again. If that is its removal, the loss is no warning. The caller
// holds j.mu.
func (j *Journal) endLoss(by *Change) {
	at := slices.IndexFunc(j.losses, func(l loss) bool {
		return l.Service == by.Service && l.Namespace == by.Namespace
	})
	if at < 0 {
		return
	}
	l := j.losses[at]
	j.losses = slices.Delete(j.losses, at, at+1)
	l.Warning = by.Reason != ServiceRemoved
	j.writeLoss(&l)
}

// writeDue writes the summary and the losses that have waited long enough, and sets the timer for the others. The
// caller holds j.mu.
func (j *Journal) writeDue() {
	j.stop()
	if j.closed {
		return
	}
	now := j.now()
	wait := time.Duration(math.MaxInt64)
	for len(j.losses) > 0 {
		if wait = j.losses[0].since.Add(lossPatience).Sub(now); wait > 0 {
			break
		}
		l := &j.losses[0]
		l.Warning = j.Leaving == nil || !j.Leaving(l.Namespace, l.Service)
		j.writeLoss(l)
		j.losses, wait = j.losses[1:], math.MaxInt64
	}
	if j.pending.count > 0 {
		left := j.summed.Add(summaryEvery).Sub(now)
		if left <= 0 {
			j.sumUp()
		} else {
			wait = min(wait, left)
		}
	}
	if wait == math.MaxInt64 {
		return
	}
	var due *time.Timer
	due = time.AfterFunc(wait, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.due == due {
			j.writeDue()
		}
	})
	j.due = due
}

// stop stops the timer. The caller holds j.mu.
func (j *Journal) stop() {
	if j.due != nil {
		j.due.Stop()
		j.due = nil
	}
}

// flush writes all that waits. The caller holds j.mu.
func (j *Journal) flush() {
	j.stop()
	for i := range j.losses {
		j.writeLoss(&j.losses[i])
	}
	j.losses = nil
	j.sumUp()
}

// take takes a token, if there is one. The caller holds j.mu.
func (j *Journal) take() bool {
	now := j.now()
	if !j.filled.IsZero() {
		j.tokens = min(burst, j.tokens+float64(now.Sub(j.filled))/float64(refill))
	}
	j.filled = now
	if j.tokens < 1 {
		return false
	}
	j.tokens--
	return true
}

// sumUp writes what is pending. The caller holds j.mu.
func (j *Journal) sumUp() {
	p := j.pending
	if p.count == 0 {
		return
	}
	j.pending, j.summed = summary{}, j.now()
	j.write(&Change{Warning: p.lost > 0, Reason: ServicesChanged, Message: "services changed", Details: p.details()})
}

// writeLoss writes a loss, and how long it has lasted. The caller holds j.mu.
func (j *Journal) writeLoss(l *loss) {
	lasted := j.now().Sub(l.since).Round(100 * time.Millisecond)
	l.Details = append(l.Details, Detail{"for", lasted.String()})
	j.write(&l.Change)
}

// write writes a change to the log and remembers it. The caller holds j.mu.
func (j *Journal) write(c *Change) {
	fields := make([]zap.Field, 0, len(c.Details)+1)
	if c.Service != "" {
		fields = append(fields, zap.String("service", c.Namespace+"/"+c.Service))
	}
	var note strings.Builder
	for i, d := range c.Details {
		fields = append(fields, zap.Any(d.Key, d.Value))
		if i > 0 {
			note.WriteString(", ")
		}
		fmt.Fprintf(&note, "%s %v", strings.ReplaceAll(d.Key, "_", " "), d.Value)
	}
	j.log.Log(level(c.Warning), c.Message, fields...)
	j.add(Entry{Warning: c.Warning, Reason: c.Reason, Namespace: c.Namespace, Service: c.Service, Note: note.String()})
}

func level(warning bool) zapcore.Level {
	if warning {
		return zap.WarnLevel
	}
	return zap.InfoLevel
}

// Seed puts what another process has remembered, the oldest first, before what there is. It is for the start: numbers
// change.
func (j *Journal) Seed(entries []Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(entries) == 0 {
		return
	}
	own := j.after(0, Size)
	j.first, j.next = max(1, entries[0].Number), max(1, entries[0].Number)
	for _, e := range append(entries, own...) {
		e.Number = j.next
		j.put(e)
	}
}

// After returns entries whose numbers are above after, the oldest first and at most limit of them.
func (j *Journal) After(after uint64, limit int) []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.after(after, limit)
}

func (j *Journal) after(after uint64, limit int) []Entry {
	from := max(j.first, min(after, j.next-1)+1)
	out := make([]Entry, 0, min(uint64(max(limit, 0)), j.next-from))
	for n := from; n < j.next && len(out) < limit; n++ {
		out = append(out, j.entries[n%Size])
	}
	return out
}

// Close writes what waits to be written.
func (j *Journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	j.flush()
}
