package config

import "slices"

// kubeProxys are the flags of kube-proxy that stand for no field of its file.
var kubeProxys = []string{"config", "master", "write-config-to", "init-only", "cleanup", "cleanup-iptables", "version",
	"help", "logtostderr", "alsologtostderr", "log-file", "log-dir", "log-file-max-size"}

// alphas may go again, or change, in any version.
var alphas = []string{"busy-poll", "udp-gso", "sctp-engine", "auto-stabilization", "outlier-failure-percentage",
	"mark-mask"}

// stability is what docs/stability.md promises for a flag: stable for those of kube-proxy, else beta or alpha.
func (o option) stability() string {
	switch {
	case o.field != "" || slices.Contains(kubeProxys, o.name):
		return "stable"
	case slices.Contains(alphas, o.name):
		return "alpha"
	}
	return "beta"
}
