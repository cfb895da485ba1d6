// Package trace answers where a packet goes by a set of iptables rules, without a
// kernel: it reads what iptables-save prints, or what iptables-restore is given, and
// walks through it as netfilter would with the first packet of a flow.
//
// Where a rule matches at random, the walk goes both ways, so that the answer is a
// list of outcomes with their probabilities. What the text does not hold has to be
// said: the node's own addresses, the members of sets, and which clients a recent list
// remembers.
//
// It knows the matches and targets that Sluice and kube-proxy write, and the common
// ones besides. An unknown match counts as not matched and an unknown target as one
// that lets the packet go on; both are noted in the outcome, which is then
// not the whole truth.
package trace
