package track

// flowMap is a map of flows. Of most first packets there is no flow yet, and to find that out takes one line of a
// cache; a map of Go looks at several, far from each other (bench/results/inside.md). It is used by one goroutine at a
// time. The zero flowMap is empty. As it grows no flow is copied, and none of the others is looked at.
//
// It has fewer than 1<<15 flows. A hash is that of the key; who can choose keys must not know it.
type flowMap struct {
	slots []slot                 // a power of two; a quarter of them is free at least
	list  []*[listPart]knownFlow // in no order, without gaps
	size  int
}

// slot says where the flow of a hash is. It is at the hash, or the next free one after it (linear probing).
type slot struct {
	hash  uint16
	place uint16 // in the list, from 1 to flowMap.size; 0: the slot is free
}

type knownFlow struct {
	key  flowKey
	hash uint16
	flow flow
}

const (
	fewSlots = 16 // a map begins with
	listPart = 64 // flows, in 6 KiB
)

func (m *flowMap) at(place uint16) *knownFlow { return &m.list[(place-1)/listPart][(place-1)%listPart] }

// get returns a flow, which may be changed until another is added or removed; nil: there is none.
func (m *flowMap) get(k *flowKey, hash uint16) *flow {
	if i, there := m.find(k, hash); there {
		return &m.at(m.slots[i].place).flow
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
		if s.hash == hash && m.at(s.place).key == *k {
			return i, true
		}
	}
}

// add adds a flow that is not there.
func (m *flowMap) add(k *flowKey, hash uint16, one *flow) {
	if 4*(m.size+1) > 3*len(m.slots) {
		m.grow()
	}
	if m.size == listPart*len(m.list) {
		m.list = append(m.list, new([listPart]knownFlow))
	}
	m.size++
	place := uint16(m.size)
	*m.at(place) = knownFlow{*k, hash, *one}
	m.enter(hash, place)
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
	old := m.slots
	m.slots = make([]slot, max(2*len(old), fewSlots))
	for _, s := range old {
		if s.place != 0 {
			m.enter(s.hash, s.place)
		}
	}
}

// remove removes a flow that is there. The last of the list takes its place.
func (m *flowMap) remove(k *flowKey, hash uint16) {
	i, there := m.find(k, hash)
	if !there {
		return
	}
	mask, last := uint16(len(m.slots)-1), uint16(m.size)
	if place := m.slots[i].place; place != last {
		*m.at(place) = *m.at(last)
		moved := m.at(place).hash & mask
		for m.slots[moved].place != last {
			moved = (moved + 1) & mask
		}
		m.slots[moved].place = place
	}
	*m.at(last) = knownFlow{}
	m.size--
	if n := len(m.list) - 1; m.size+listPart <= listPart*n { // one that is free stays
		m.list[n] = nil
		m.list = m.list[:n]
	}
	// What is not at its hash, and would be beyond a free slot, moves up.
	for j := (i + 1) & mask; m.slots[j].place != 0; j = (j + 1) & mask {
		if at := m.slots[j].hash & mask; (j-at)&mask >= (j-i)&mask {
			m.slots[i] = m.slots[j]
			i = j
		}
	}
	m.slots[i] = slot{}
}
