// Package keep holds dependencies in go.mod while the rooms are being written. Temporary: deleted before the first landing.
package keep

import (
	_ "github.com/coreos/go-iptables/iptables"
	_ "github.com/fsnotify/fsnotify"
	_ "github.com/panjf2000/gnet/v2/pkg/netpoll"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/prometheus/client_golang/prometheus/testutil"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "github.com/spf13/pflag"
	_ "github.com/google/go-cmp/cmp"
	_ "go.uber.org/zap"
	_ "go.uber.org/zap/zaptest/observer"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/net/dns/dnsmessage"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/api/discovery/v1"
	_ "k8s.io/apimachinery/pkg/runtime/serializer"
	_ "sigs.k8s.io/yaml"
)
