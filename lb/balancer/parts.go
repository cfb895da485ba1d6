package balancer

// The parts of a Balancer. Each is one pointer, to be asked for where it is needed. All their methods may be called by
// any number of goroutines. Those that change what Update changes, too, wait for it, and for each other
// (Balancer.mu): they are not for loops, but for those that watch, look and hand over.

// Health owns what is known of how backends do: failures, active checks, ejections and their trials. The loops tell it
// by their Choices (Answered, Failed and their like), without a wait. Its methods wait for Update; who calls them is
// the watcher of ejections, who makes active checks, and who tells kernel paths which backends are out.
type Health struct{ b *Balancer }

// Health returns that part.
func (b *Balancer) Health() Health { return Health{b} }

// Queues owns what clients have of the limits of services, and who waits for a backend or for room at one. Loops call
// its methods, for each client, and none waits for Update, but for Rejoin and Resumed, which are for the start.
type Queues struct{ b *Balancer }

// Queues returns that part.
func (b *Balancer) Queues() Queues { return Queues{b} }

// Memory passes what outlives a process on to the next one: counts, positions, clients with affinity, rates,
// conversations, times and choices. Its methods wait for Update. They are for who hands over, who takes over before
// the first Pick, and kernel paths, whose clients keep their backends and whose choices others have made.
type Memory struct{ b *Balancer }

// Memory returns that part.
func (b *Balancer) Memory() Memory { return Memory{b} }

// Counters reads what was counted. Its methods wait for Update, some for one service at a time, and no Pick waits for
// them. They are for metrics, commands and histories.
type Counters struct{ b *Balancer }

// Counters returns that part.
func (b *Balancer) Counters() Counters { return Counters{b} }
