// Package kubeproxy removes what the modes of kube-proxy 1.8 to 1.37 leave in the kernel when
// it ends: rules of iptables, tables of nftables, and virtual servers, sets and the device of
// ipvs. kube-proxy itself removes what its other modes have left when it starts
// (CleanupLeftovers in its packages pkg/proxy/iptables, ipvs and nftables); this removes the
// same, with these differences:
//
//   - Chains of kubelet's (KUBE-FIREWALL, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT,
//     KUBE-MARK-DROP) stay, as there.
//   - KUBE-MARK-MASQ and KUBE-POSTROUTING stay while chains of other programs lead to the
//     former, as those for host ports of the CNI plugin portmap can; while nothing else of
//     kube-proxy is there, since kubelet before 1.28 has them, too; and where no program of
//     iptables is installed, as then nothing leads to them.
//   - Of ipvs only what is not of Sluice goes, and only while kube-proxy's device is there.
//     Virtual servers for marks, and in ranges that are excluded, stay.
//
// It is for Linux, needs CAP_NET_ADMIN and works in the network namespace of the calling
// thread. There are no goroutines. Rules of other modes than userspace, which package redirect
// removes, are to be removed only by who serves in kube-proxy's place.
package kubeproxy
