package netfilter

import (
	"context"
	"fmt"
	"strings"
)

// Look reads what the kernel holds in the chains that are keys of now, as iptables'
// program path with or without nf_tables sees it; none in one that does not exist. It
// is one process with the legacy backend and none with nf_tables.
func Look(ctx context.Context, path string, nft, ipv6 bool, now map[Place][]Rule) error {
	if !nft {
		return lookLegacy(ctx, path, now)
	}
	for at := range now {
		rules, err := NFTRules(Family(ipv6), at)
		if err != nil {
			return fmt.Errorf("list rules of chain %s of table %s: %w", at.Chain, at.Table, err)
		}
		now[at] = rules
	}
	return nil
}

func lookLegacy(ctx context.Context, path string, now map[Place][]Rule) error {
	save, err := Run(ctx, nil, path+"-save")
	if err != nil {
		return err
	}
	var at Place
	for line := range strings.Lines(string(save)) {
		line = strings.TrimSuffix(line, "\n")
		if table, ok := strings.CutPrefix(line, "*"); ok {
			at.Table = table
		}
		rule, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue
		}
		at.Chain, _, _ = strings.Cut(rule, " ")
		if rules, wanted := now[at]; wanted {
			now[at] = append(rules, Rule{line, Target(Words(line))})
		}
	}
	return nil
}
