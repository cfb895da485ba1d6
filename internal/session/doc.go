// Package session is what TCP connections and SCTP associations over sockets have in common while they are accepted,
// dialled, listed, drained and handed over. What is relayed, and how, is each protocol's own.
//
// A [Shard] is the part of a server that lives on one loop. Its [Listener]s accept, and stop for a while at the
// limits of descriptors and of dials in flight: clients wait in the backlog meanwhile. Each accepted client
// becomes an [Owner], which embeds a [Conn] and two [Side]s, and is in the Shard's list until it ends.
//
// [Shard.Dial] tries one backend after the other ([Ladder]): at once if one refuses, after its timeout if it is
// silent, and after a short wait if this host lacks descriptors, ports or memory.
//
// The Ladder and the counters are also for servers without loops, on every platform. All else runs on the loop,
// allocates nothing per byte or message, and locks nothing.
package session
