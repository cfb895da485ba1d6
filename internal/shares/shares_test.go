package shares

import "testing"

// take lets the holders take one unit at a time in turn until none may, and returns what each has.
func take(p Percent, limit int64, holders ...string) (h Holders[string], free int64) {
	free = limit
	for took := true; took; {
		took = false
		for _, k := range holders {
			if free > 0 && p.Allows(h.Held(k), 1, free) {
				h.Add(k, 1)
				free--
				took = true
			}
		}
	}
	return h, free
}

func TestShares(t *testing.T) {
	tests := []struct {
		name    string
		percent Percent
		holders []string
		each    int64 // what each holder ends with, of 10,000
	}{
		{"one alone", 90, []string{"a"}, 9000},
		{"two get equal parts", 90, []string{"a", "b"}, 4737}, // 9 / (1 + 2*9)
		{"four", 90, []string{"a", "b", "c", "d"}, 2432},
		{"half", 50, []string{"a"}, 5000},
		{"no bound", 100, []string{"a"}, 10000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, free := take(tt.percent, 10000, tt.holders...)
			for _, k := range tt.holders {
				if got := h.Held(k); got < tt.each-1 || got > tt.each+1 {
					t.Errorf("%s has %d, want %d", k, got, tt.each)
				}
			}
			if tt.percent < 100 && free == 0 {
				t.Error("nothing is left for one that comes later")
			}
		})
	}
}

// One that comes after a greedy one still gets something, and more as soon as the other gives back.
func TestLateComer(t *testing.T) {
	const limit = 1000
	h, free := take(90, limit, "greedy")
	if !Percent(90).Allows(h.Held("late"), 1, free) {
		t.Fatalf("nothing for the second of two: %d free", free)
	}
	if Percent(90).Allows(h.Held("greedy"), 1, free-1) {
		t.Error("the greedy one may take more")
	}
}

func TestHoldersForget(t *testing.T) {
	var h Holders[int]
	h.Add(1, 2)
	h.Add(1, -2)
	if len(h.held) != 0 {
		t.Errorf("%d holders are kept that have nothing", len(h.held))
	}
}
