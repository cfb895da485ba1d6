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
	ByAffinity     = byAlgorithm + Why(len(algorithmNames)) + iota // the client was there before (sessionAffinity)
	ByConversation                                                 // the UDP client was there a moment ago
	ByRetry                                                        // another has failed
	BySlowStart                                                    // that whose turn it is starts slowly
	ByRoom                                                         // that whose turn it is has as many connections as it may
	ByQueue                                                        // it was the first to have room, for which the client has waited
	ByHold                                                         // it was the first to be ready, for which the client has waited
)

var otherReasons = [...]string{"affinity", "conversation", "retry", "slow_start", "room", "queue", "hold"}

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

// because notes why, if that is asked.
func (f *Flow) because(why Why) {
	if f.Why != nil {
		*f.Why = why
	}
}

// reasonFor returns why next chooses as it does.
func (s *service) reasonFor(f *Flow) Why {
	switch {
	case !f.Tried.none():
		return ByRetry
	case s.method == nil:
		return byAlgorithm
	}
	return byAlgorithm + Why(s.method.algorithm)
}
