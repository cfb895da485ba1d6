package handover

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-lb/sluice/lb"
)

// instants are the fields of records that are times on the clock of a process.
var instants = []string{"Kept.Born", "Kept.Answered", "Kept.Active", "Kept.ClientEnd", "Kept.BackendEnd", "Kept.Gone",
	"Dialling.Queued", "Packets.Asking", "Frozen.Born", "Frozen.Heard", "Frozen.Awaits", "Client.LastUsed",
	"Conversation.Time", "ClientRate.Rested", "BackendHealth.Returned", "BackendHealth.At",
	"BackendHealth.Until", "BackendHealth.Trial", "Pace.Measured", "Pace.Began", "Drain.Deadline"}

// amounts are those of type int64 that are none.
var amounts = []string{"BackendHealth.Times", "Pace.Delay", "Service.AffinityTimeout", "Service.Created",
	"Policies."}

// stays are those that do not cross, or not as numbers: descriptors, and what each process counts for itself.
var stays = []string{"Frozen.Client", "Frozen.Backend", "Frozen.FD", "Sockets.Client", "Sockets.Backend", "Listening.FDs",
	"ListeningSocket.FD", "Holding.Engine", "Raw.FD", "Raw.Router", "httpSocket.FD", "Stats.OverShare", "Stats.InFlight", "Stats.Held", "Stats.Queued",
	"Stats.AffinityEntries", "Stats.AffinityEvicted", "Stats.Conversations", "Stats.ConversationsEvicted", "BackendStats.InFlight",
	"Policies."}

// number of a record: a field, or an element of one.
type field struct {
	name string
	v    reflect.Value
}

func (f *field) is(of []string) bool {
	return slices.ContainsFunc(of, func(s string) bool { return s == f.name || strings.HasSuffix(s, ".") && strings.HasPrefix(f.name, s) })
}

// numbers appends all numbers of v, which is named by its type and field.
func numbers(name string, v reflect.Value, all []field) []field {
	switch t := v.Type(); {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return numbers(name, v.Elem(), all)
	case t == reflect.TypeFor[[]byte](): // text
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		for i := range v.Len() {
			all = numbers(name, v.Index(i), all)
		}
	case v.Kind() == reflect.Struct && t.PkgPath() != "net/netip" && t.PkgPath() != "time":
		for i := range v.NumField() {
			one := v.Field(i)
			one = reflect.NewAt(one.Type(), unsafe.Pointer(one.UnsafeAddr())).Elem() // also one that is not exported
			all = numbers(t.Name()+"."+t.Field(i).Name, one, all)
		}
	case (v.CanInt() || v.CanUint()) && t != reflect.TypeFor[lb.Why](): // that is a word
		all = append(all, field{name, v})
	}
	return all
}

// extremes returns values of a number, but for 0 where that means that there is nothing.
func extremes(v reflect.Value) (all []reflect.Value) {
	if v.CanUint() {
		return []reflect.Value{reflect.ValueOf(uint64(math.MaxUint64) >> (64 - v.Type().Bits())).Convert(v.Type())}
	}
	for _, n := range []int64{math.MinInt64, -1 << 62, -1, 0, 1, 1 << 62, math.MaxInt64} {
		if !v.OverflowInt(n) {
			all = append(all, reflect.ValueOf(n).Convert(v.Type()))
		}
	}
	return all
}

// TestExtremes: each number of each record crosses with its extreme values, and each time is the same moment for a
// process whose clock began at another one.
func TestExtremes(t *testing.T) {
	was := hostClock
	defer func() { hostClock = was }()
	const began, later = int64(1000 * time.Second), int64(4600 * time.Second)
	crossed := make(map[string]bool)
	for name, s := range samples() {
		all := numbers(reflect.TypeOf(s.v).Elem().Name(), reflect.ValueOf(s.v).Elem(), nil)
		for i := range all {
			f := &all[i]
			if f.v.Type() == reflect.TypeFor[int64]() && !f.is(instants) && !f.is(amounts) {
				t.Errorf("%s: is %s a time, or an amount?", name, f.name)
			}
			crosses := !f.is(stays) && !f.v.IsZero()
			if crossed[f.name] = crossed[f.name] || crosses || f.is(stays); !crosses {
				continue
			}
			before := reflect.ValueOf(f.v.Interface())
			for _, value := range extremes(f.v) {
				f.v.Set(value)
				hostClock = func() int64 { return began }
				var w codec
				s.pass(&w, s.v)
				hostClock = func() int64 { return later }
				r := codec{b: w.b, fds: w.fds, reading: true}
				got := s.pass(&r, nil)
				read := numbers(reflect.TypeOf(got).Elem().Name(), reflect.ValueOf(got).Elem(), nil)
				want := fmt.Sprint(value)
				if f.is(instants) {
					want = fmt.Sprint(shift(shift(value.Int(), began), -later))
				}
				if r.err != nil || len(read) != len(all) || fmt.Sprint(read[i].v) != want {
					t.Errorf("%s: %s of %v crosses as %v, want %s; %v", name, f.name, value, read[i].v, want, r.err)
				}
			}
			f.v.Set(before)
		}
	}
	for name, is := range crossed {
		if !is {
			t.Errorf("%s is set in no sample", name)
		}
	}
}

// TestShift: what stands for none, always and never stays, and nothing else becomes that.
func TestShift(t *testing.T) {
	const by = int64(time.Hour)
	for _, tt := range [][3]int64{{0, by, 0}, {math.MaxInt64, -by, math.MaxInt64}, {math.MinInt64, by, math.MinInt64},
		{-by, by, 1}, {by, -by, 1}, {7, by, by + 7}, {-7, -by, -by - 7}, {math.MaxInt64 - by, by, math.MaxInt64 - 1},
		{math.MaxInt64 - 1, by, math.MaxInt64 - 1}, {math.MinInt64 + 1, -by, math.MinInt64 + 1}} {
		if got := shift(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%d by %d is %d, want %d", tt[0], tt[1], got, tt[2])
		}
	}
}
