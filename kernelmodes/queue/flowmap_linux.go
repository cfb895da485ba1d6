package queue

// flowMap is a map of flows. Of most first packets there is no flow yet, and to find that out takes one line of a
// cache; a map of Go looks at several, far from each other (bench/results/inside.md). It is used by one goroutine at a
// time. The zero flowMap is empty.
//
// It has fewer than 1<<15 flows. A hash is that of the key; who can choose keys must not know it.
type flowMap struct {
	slots []slot      // a power of two; a quarter of them is free at least
	list  []knownFlow // in no order
}

// slot says where the flow of a hash is. It is at the hash, or the next free one after it (linear probing).
type slot struct {
	hash  uint16
	place uint16 // in the list, from 1 on; 0: the slot is free
}

type knownFlow struct {
	key  flowKey
	hash uint16
	flow flow
}

// fewSlots is how many a map begins with.
const fewSlots = 16

// get returns a flow, which may be changed until another is added or removed; nil: there is none.
func (m *flowMap) get(k *flowKey, hash uint16) *flow {
	if i, there := m.find(k, hash); there {
		return &m.list[m.slots[i].place-1].flow
	}
	return nil
}

// find returns the slot of a flow, or the free one where it would be if there are slots.
func (m *flowMap) find(k *flowKey, hash uint16) (i uint16, there bool) {
	if len(m.slots) == 0 {
		return 0, false
	}
	mask := uint16(len(m.slots) - 1)
	for i = hash & mask; ; i = (i + 1) & mask {
		s := m.slots[i]
		if s.place == 0 {
			return i, false
		}
		if s.hash == hash && m.list[s.place-1].key == *k {
			return i, true
		}
	}
}

// add adds a flow that is not there.
func (m *flowMap) add(k *flowKey, hash uint16, one *flow) {
	if 4*(len(m.list)+1) > 3*len(m.slots) {
		m.grow()
	}
	m.list = append(m.list, knownFlow{*k, hash, *one})
	m.enter(hash, uint16(len(m.list)))
}

// enter uses the first free slot for a hash.
func (m *flowMap) enter(hash, place uint16) {
	mask := uint16(len(m.slots) - 1)
	i := hash & mask
	for m.slots[i].place != 0 {
		i = (i + 1) & mask
	}
	m.slots[i] = slot{hash, place}
}

func (m *flowMap) grow() {
	m.slots = make([]slot, max(2*len(m.slots), fewSlots))
	for i := range m.list {
		m.enter(m.list[i].hash, uint16(i+1))
	}
}

// remove removes a flow that is there. The last of the list takes its place.
func (m *flowMap) remove(k *flowKey, hash uint16) {
	i, there := m.find(k, hash)
	if !there {
		return
	}
	mask, last := uint16(len(m.slots)-1), uint16(len(m.list))
	if place := m.slots[i].place; place != last {
		m.list[place-1] = m.list[last-1]
		moved := m.list[place-1].hash & mask
		for m.slots[moved].place != last {
			moved = (moved + 1) & mask
		}
		m.slots[moved].place = place
	}
	m.list[last-1] = knownFlow{}
	m.list = m.list[:last-1]
	// What is not at its hash, and would be beyond a free slot, moves up.
	for j := (i + 1) & mask; m.slots[j].place != 0; j = (j + 1) & mask {
		if at := m.slots[j].hash & mask; (j-at)&mask >= (j-i)&mask {
			m.slots[i] = m.slots[j]
			i = j
		}
	}
	m.slots[i] = slot{}
}
