package testbed

import "testing"

// TestRepeat: clients ask until they are stopped.
func TestRepeat(t *testing.T) {
	asked := make(chan struct{}, 1)
	l := Repeat(t, 2, func() error {
		select {
		case asked <- struct{}{}:
		default:
		}
		return nil
	})
	<-asked
	l.More(10)
	l.Stop()
	if n := l.Done(); n < 10 || n != l.Done() {
		t.Errorf("%d were asked", n)
	}
}
