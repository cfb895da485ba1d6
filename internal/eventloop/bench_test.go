package eventloop

import (
	"fmt"
	"testing"
)

// BenchmarkWheel is what a connection or flow costs the wheel: a timer that is started
// and stopped, or started and fired, beside many others.
func BenchmarkWheel(b *testing.B) {
	const second = int64(1e9)
	none := expirer(func(*Timer) {})
	for _, others := range []int{0, 1_000, 100_000} {
		var w wheel
		w.init(0)
		running := make([]Timer, others)
		for i := range running {
			w.add(&running[i], none, 3600*second+int64(i)*Tick)
		}
		b.Run(fmt.Sprintf("start and stop, %d others", others), func(b *testing.B) {
			var t Timer
			b.ReportAllocs()
			for b.Loop() {
				w.add(&t, none, second/4)
				w.remove(&t)
			}
		})
	}
	b.Run("start and fire", func(b *testing.B) {
		var w wheel
		w.init(0)
		var timers [64]Timer
		now := int64(0)
		b.ReportAllocs()
		for b.Loop() {
			for i := range timers {
				w.add(&timers[i], none, now+second/4)
			}
			now += second/4 + Tick
			w.fire(now)
		}
		if w.count != 0 {
			b.Fatalf("%d timers did not fire", w.count)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(timers)), "ns/timer")
	})
	b.Run("next of 1000", func(b *testing.B) {
		var w wheel
		w.init(0)
		timers := make([]Timer, 1000)
		for i := range timers {
			w.add(&timers[i], none, second+int64(i)*Tick)
		}
		b.ReportAllocs()
		for b.Loop() {
			if w.next() < 0 {
				b.Fatal("no timer is next")
			}
		}
	})
}
