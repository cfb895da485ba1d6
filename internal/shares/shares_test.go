package shares

import "testing"

// take lets holders take one unit at a time in turn until none may, and returns what each has.
func take(p Percent, limit int64, holders int) (held []int64, free int64) {
	held, free = make([]int64, holders), limit
	for took := true; took; {
		took = false
		for i := range held {
			if free > 0 && p.Allows(held[i], 1, free) {
				held[i]++
				free--
				took = true
			}
		}
	}
	return held, free
}

func TestShares(t *testing.T) {
	tests := []struct {
		name    string
		percent Percent
		holders int
		each    int64 // what each holder ends with, of 10,000
	}{
		{"one alone", 90, 1, 9000},
		{"two get equal parts", 90, 2, 4737}, // 9 / (1 + 2*9)
		{"four", 90, 4, 2432},
		{"half", 50, 1, 5000},
		{"no bound", 100, 1, 10000},
		{"no bound is given", 0, 1, 10000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			held, free := take(tt.percent, 10000, tt.holders)
			for i, got := range held {
				if got < tt.each-1 || got > tt.each+1 {
					t.Errorf("holder %d has %d, want %d", i, got, tt.each)
				}
			}
			if tt.percent%100 != 0 && free == 0 {
				t.Error("nothing is left for one that comes later")
			}
		})
	}
}

// One that comes after a greedy one still gets something, and the greedy one nothing more.
func TestLateComer(t *testing.T) {
	held, free := take(90, 1000, 1)
	if !Percent(90).Allows(0, 1, free) {
		t.Fatalf("nothing for the second of two: %d free", free)
	}
	if Percent(90).Allows(held[0], 1, free-1) {
		t.Error("the greedy one may take more")
	}
}
