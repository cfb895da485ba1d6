package track

import "testing"

// TestAnsweredStays: a flow that is answered while conntrack is asked about it stays so, whatever conntrack said.
func TestAnsweredStays(t *testing.T) {
	var f flow
	f.miss()
	f.answer(7)
	if f.miss(); f.state != answered || f.id != 7 {
		t.Errorf("%s, of entry %d; want it answered, of entry 7", &f, f.id)
	}
}
