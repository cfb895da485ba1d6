// Package kernelmodes has what the engines of the packages below share: whose connections
// get this node as their source, which traffic is that of pods, what chains are named after, and
// which conntrack entries of UDP and SCTP a change deletes.
package kernelmodes
