package daemon

import (
	"errors"
	"testing"
	"time"
)

// TestRival: what is found first was left, what comes later is of a kube-proxy that runs, and that is said once until
// it has written nothing for a while.
func TestRival(t *testing.T) {
	r := rival{first: true, pause: firstLookPause}
	failed := errors.New("failed")
	for i, x := range []struct {
		found       bool
		err         error
		begun, over bool
		pause       time.Duration
	}{
		{err: failed, pause: 2 * firstLookPause},
		{found: true, pause: firstLookPause}, // it was left
		{pause: 2 * firstLookPause},
		{pause: 4 * firstLookPause},
		{found: true, begun: true, pause: firstLookPause},
		{found: true, pause: firstLookPause},
		{pause: 2 * firstLookPause}, // too soon: it may not have missed them
		{found: true, pause: firstLookPause},
		{pause: 2 * firstLookPause},
		{err: failed, pause: 4 * firstLookPause},
		{over: true, pause: 8 * firstLookPause},
		{found: true, begun: true, pause: firstLookPause},
	} {
		begun, over := r.looked(x.found, x.err)
		if begun != x.begun || over != x.over || r.pause != x.pause {
			t.Errorf("look %d: begun %v, over %v, pause %v, want %+v", i, begun, over, r.pause, x)
		}
	}
}
