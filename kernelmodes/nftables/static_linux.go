package nftables

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
)

// static fills the table with what does not depend on Services.
func (s *shape) static(t *nft.Table) {
	for _, set := range sets {
		t.AddSet(set)
	}
	if s.ask.Count > 0 {
		s.asks(t)
	}
	set := func(chain string, rules ...nft.Rule) { t.SetChain(chain, s.hook(chain), rules) }
	look := []nft.Rule{
		s.rule().Jump(chainClusters).Rule("masquerade what asks cluster IPs from elsewhere"),
		s.rule().Goto(setServices, asked...).Rule(""),
		s.rule().ToLocal().Loopback(false).Goto(setNodePorts, port...).Rule(""),
	}
	for _, chain := range []string{chainPre, chainOut, chainAgain} {
		set(chain, look...)
	}
	set(chainClusters, s.rule().Goto(setClusters, asked...).Rule(""))
	set(chainMark, s.rule().SetMark(s.mark, true).Rule(""))
	set(chainOutside, s.outside()...)
	set(chainPost,
		s.rule().Translated(true).In(setSame, nft.Source, nft.Destination).Masquerade().Rule("to itself"),
		// What is marked once, and leaves the node again in a tunnel, is not ours then.
		s.rule().Marked(s.mark, true).SetMark(s.mark, false).Masquerade().Rule("answers must come back here"))
	undefined := func(protocol uint8) nft.Rule { // ICMP goes on, and so does what is for the node itself
		return s.rule().Protocol(protocol).In(setIPs, nft.Destination).Away().GotoChain(chainReject).
			Rule("no port of the cluster IP")
	}
	set(chainUnserved,
		s.rule().Goto(setUnserved, asked...).Rule(""),
		s.rule().ToLocal().Goto(setNoNode, port...).Rule(""),
		undefined(unix.IPPROTO_TCP), undefined(unix.IPPROTO_UDP), undefined(unix.IPPROTO_SCTP))
	set(chainReject,
		s.rule().Protocol(unix.IPPROTO_TCP).Reject(true).Rule(""),
		s.rule().Reject(false).Rule(""))
	set(chainDrop, s.rule().Drop().Rule(""))
	set(chainDropElse, s.rule().Loopback(false).Drop().Rule(""))
	// A packet that is read during a transaction finds nothing in a map that is replaced (nft_map_deactivate of
	// Linux 6.4). It looks again, by the new rules, before it is refused.
	left := []nft.Rule{s.rule().Jump(chainAgain).Rule(""), s.rule().Jump(chainUnserved).Rule("")}
	set(chainPreLeft, left...)
	// What the socket of a UDP node port sends to a client whose conntrack entry was deleted when the Service
	// moved here would make an entry that begins with the answer, and all that the client sends would belong
	// to that and go to the socket.
	udp := func() *nft.Builder { return s.rule().Protocol(unix.IPPROTO_UDP) }
	set(chainOutLeft, slices.Concat(left, []nft.Rule{
		udp().FromLoopback(false).In(setUDPPorts, nft.SourcePort).Drop().Rule("its node port has moved"),
		udp().In(setUDPAddrs, nft.Source, nft.SourcePort).Drop().Rule("its node port has moved"),
	})...)
}

// hook returns that of a chain, nil if it has none. A table that asks comes before one that does not.
func (s *shape) hook(chain string) *nft.Hook {
	hook := hooks[chain]
	if hook == nil || s.ask.Count == 0 || hook.Type != "nat" {
		return hook
	}
	first := *hook
	first.Priority--
	return &first
}

// outside returns the rules that mark what is not of a pod.
func (s *shape) outside() (rules []nft.Rule) {
	if !s.all {
		for _, pod := range s.fromPods() {
			rules = append(rules, pod.Return().Rule("from pods of this node"))
		}
		if len(rules) == 0 {
			return nil
		}
	}
	return append(rules, s.rule().SetMark(s.mark, true).Rule(""))
}

// fromPods returns beginnings of rules that match the traffic of pods; none if it is not known.
func (s *shape) fromPods() (out []*nft.Builder) {
	if s.bridge != "" { // what a pod sends comes from a port of the bridge
		out = append(out, s.rule().Is(nft.InInterface, true, nft.Key(s.bridge)))
	}
	if s.interfaces != "" {
		out = append(out, s.rule().Begins(strings.TrimSuffix(s.interfaces, "+")))
	}
	for _, p := range s.pods {
		out = append(out, s.rule().From(p, true))
	}
	return out
}

// from begins a rule for clients within a range.
func (s *shape) from(p netip.Prefix) *nft.Builder {
	if p.Bits() == 0 {
		return s.rule()
	}
	return s.rule().From(p, true)
}

func (s *shape) rule() *nft.Builder { return nft.NewRule(s.ipv6) }
