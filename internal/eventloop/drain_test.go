package eventloop

import "testing"

func TestDrain(t *testing.T) {
	ended := func(d *Drain) bool {
		select {
		case <-d.done:
			return true
		default:
			return false
		}
	}
	var d Drain
	d.Check(true)
	if d.Started() || ended(&d) {
		t.Error("it has started by itself")
	}
	d.Start(false)
	d.Check(false)
	if !d.Started() || ended(&d) {
		t.Error("it has ended before the last")
	}
	for range 2 {
		d.Check(true)
		d.Start(true)
		if !ended(&d) {
			t.Error("it has not ended")
		}
	}
}
