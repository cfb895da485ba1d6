package track

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// TestFlowMap: a flowMap has what a map of Go has, whatever comes and goes, with hashes of which many are the same.
func TestFlowMap(t *testing.T) {
	for _, hashes := range []uint32{1, 7, 1 << 10, 1 << 16} {
		r := rand.New(rand.NewPCG(1, uint64(hashes)))
		var m flowMap
		model, hashOf := make(map[flowKey]int64), make(map[flowKey]uint16)
		keys := make([]flowKey, 600)
		for i := range keys {
			keys[i].clientPort, keys[i].askedPort = uint16(i), 53
			hashOf[keys[i]] = uint16(r.Uint32N(hashes))
		}
		for step := range int64(30_000) {
			most := len(keys)
			if step/5_000%2 == 1 { // few at a time, so that it shrinks as well as it grows
				most = 40
			}
			k := keys[r.IntN(most)]
			hash := hashOf[k]
			_, there := model[k]
			switch one := m.get(&k, hash); {
			case there != (one != nil), there && one.since != model[k]:
				t.Fatalf("%d hashes, step %d: %v, but %v, %d", hashes, step, one, there, model[k])
			case !there && r.IntN(2) == 0:
				m.add(&k, hash, &flow{since: step})
				model[k] = step
			case there && r.IntN(3) == 0:
				one.since = -step
				model[k] = -step
			case there:
				m.remove(&k, hash)
				delete(model, k)
			default:
				m.remove(&k, hash) // what is not there: nothing happens
			}
			if step%1_000 == 0 || step > 29_900 {
				checkFlowMap(t, &m, model)
			}
		}
	}
}

// checkFlowMap fails the test unless a map has what the model has, and finds all of it.
func checkFlowMap(t *testing.T, m *flowMap, model map[flowKey]int64) {
	t.Helper()
	has, used := make(map[flowKey]int64), 0
	for n := range m.size {
		x := m.at(uint16(n + 1))
		has[x.key] = x.flow.since
		if found := m.get(&x.key, x.hash); found != &x.flow {
			t.Fatalf("a flow of the list is not found: %v, %v", x, found)
		}
	}
	for _, s := range m.slots {
		if s.place != 0 {
			used++
		}
	}
	if !maps.Equal(has, model) || used != len(model) {
		t.Fatalf("it has %d flows in %d slots, the model %d", len(has), used, len(model))
	}
	for n := m.size; n < listPart*len(m.list); n++ {
		if *m.at(uint16(n + 1)) != (knownFlow{}) {
			t.Fatal("what was removed is kept from the collector")
		}
	}
	if len(m.list) > m.size/listPart+2 {
		t.Fatalf("%d flows take %d parts of the list", m.size, len(m.list))
	}
}
