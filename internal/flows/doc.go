// Package flows knows what the kernel forwards. It is the only room that talks to conntrack, the kernel's table of
// connections.
//
//	          events  ┌──> track.Tracker: path queue: the state of each flow, what is in flight
//	conntrack ─> Watch┤
//	   │              └──> report.Flows: access log, counts
//	   └─ entries ─> Each ─> both
//
// An entry is deleted by
//
//   - Stale: it keeps packets where they do not belong
//   - DeleteUntranslated: a virtual server of ipvs comes or goes, where entries may not outlast the change
//   - DeleteReset: the process ends and has reset the connection, whose client may take its port again
//   - DeleteRedirected: the rules that redirected its packets were removed by --cleanup
//   - track.Tracker.fail: the endpoint is silent, and the flow may have another
//   - track.Tracker.learn: an association of SCTP has ended, whose ports may begin another
//   - report.Flows.endDrained: the endpoint was drained, and its deadline has come
//
// Netfilter looks at rules only for the first packet of a flow. After that conntrack's entry says where the packets go,
// so that an entry outlives the rules, the socket or the endpoint that it leads to. When rules are written, the agent
// (agent.Agent.reconcile) tells Stale for each changed frontend what serves it (Place). Stale
// deletes the entries that lead elsewhere.
//
// An answered flow of UDP stays where it is when its Service moves to another path, not from or to ipvs, and the
// endpoint stays: an answer may be under way. The agent (sockets.goOn) keeps a proxy port open for it. Stale leaves
// TCP entries alone, except those of clients whose SYN has no answer, and either came before the Service was served or
// went to an endpoint that has left a kernel path. Their next SYN reaches an endpoint.
//
// These places know protocols. Look at each for a new one:
//
//   - conntrack: entry.go (State), entries.go (Timeouts.Quiet), delete_linux.go (unreplied, deleteUnreplied)
//   - entry.go: StateOf, IsRefused, EndOf
//   - stale.go: Stale.Change, Stale.Add (TCP and SCTP), family.note, family.reconcile
//   - place.go: frontends.decide, frontend.stale of UDP, frontend.lost of SCTP and TCP
//   - track: flowKey.isUDP, flowKey.isTCP, and where probeOne and learn ask for a protocol
//
// What an earlier process, which has crashed, sent to frontends that no Service has any more is left to conntrack's
// timeouts, as with kube-proxy.
//
// The state of a flow changes in the methods of package track's flow (track/flow_linux.go). What an entry says of its
// connection is here (entry.go): StateOf, EndOf.
//
// To inspect: "conntrack -L -d ADDRESS" and "conntrack -E" show what the kernel says, "sluice connections" what this
// package reports. The scripts in track/testdata show each transition of a flow.
package flows
