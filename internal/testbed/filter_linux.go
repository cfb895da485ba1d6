package testbed

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// filterTables returns the tables of nf_tables in the network namespace of the calling thread, as
// nft names them: "ip sluice-steering". Tables of families other than ip, ip6 and inet have a number.
func filterTables() (names []string, err error) {
	const getTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE
	req := nl.NewNetlinkRequest(getTable, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_UNSPEC, Version: nl.NFNETLINK_V0})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // the kernel has no nf_tables
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	families := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}
	for _, m := range answers {
		family, ok := families[m[0]]
		if !ok {
			family = fmt.Sprint(m[0])
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.NFTA_TABLE_NAME {
				names = append(names, family+" "+string(bytes.TrimRight(a.Value, "\x00")))
			}
		}
	}
	return names, nil
}
