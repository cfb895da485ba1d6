package lb

// Why says why a backend was chosen for a connection or flow, in a word that stays the same from version to version.
type Why uint8

// The reasons. The first ones are the algorithms, in their order: by its turn, for its few connections, and so on.
const (
	NotKnown    Why = iota
	byAlgorithm     // of algorithm 0
)

// The other reasons.
const (
	// ByAffinity is where the client was before (sessionAffinity), and ByConversation where the UDP client was a moment
	// ago.
	ByAffinity = byAlgorithm + Why(len(algorithmNames)) + iota
	ByConversation

	// ByRetry is another one than that which has failed, BySlowStart than that whose turn it is and which starts
	// slowly, and ByRoom than that which has as many connections as it may.
	ByRetry
	BySlowStart
	ByRoom

	// ByQueue was the first to have room, and ByHold to be ready, for which the client has waited.
	ByQueue
	ByHold
)

var otherReasons = [...]string{"affinity", "conversation", "retry", "slow_start", "room", "queue", "hold"}

// ByAlgorithm is the choice of an algorithm.
func ByAlgorithm(a Algorithm) Why { return byAlgorithm + Why(a) }

// String returns the word: rr, lc, p2c, ewma, random, sh or maglev for the algorithm of the Service, or affinity,
// conversation, retry, slow_start, room, queue or hold; empty: it is not known.
func (w Why) String() string {
	switch {
	case w == NotKnown || int(w-ByAffinity) >= len(otherReasons) && w >= ByAffinity:
		return ""
	case w < ByAffinity:
		return algorithmNames[w-byAlgorithm]
	}
	return otherReasons[w-ByAffinity]
}

// WhyOf returns what a word of String says: NotKnown if it says nothing, or what another version does.
func WhyOf(word string) Why {
	for w := byAlgorithm; w.String() != ""; w++ {
		if w.String() == word {
			return w
		}
	}
	return NotKnown
}

// MarshalText returns the word, since the numbers differ from version to version.
func (w Why) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText is WhyOf. It never fails.
func (w *Why) UnmarshalText(word []byte) error {
	*w = WhyOf(string(word))
	return nil
}
