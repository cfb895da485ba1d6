package testbed

import (
	"errors"
	"fmt"
	"sync"
)

// ErrUnsupported is wrapped by the errors of [New] and [Reexec] where the
// platform, the kernel, or the privileges of the program do not allow network
// namespaces.
var ErrUnsupported = errors.New("network namespaces are not to be had here")

// Config says what to build. The zero value is the standard lab: one client, the
// node, three pods.
type Config struct {
	Clients    int // 0 means 1; negative means none; at most 100
	Pods       int // pods on the node; 0 means 3; negative means none; at most 200
	RemotePods int // pods on the remote node, which exists only if this is positive; at most 200

	// Here makes the host of this process, which [Main] has given it, the node: for what opens sockets on
	// goroutines of its own. Close removes the node's interfaces, and its settings stay. One testbed at a time has it.
	Here bool
}

func (c Config) validate() error {
	if c.Clients > 100 || c.Pods > 200 || c.RemotePods > 200 {
		return fmt.Errorf("build testbed: %+v exceeds 100 clients, 200 pods, or 200 remote pods", c)
	}
	return nil
}

// Testbed is a set of hosts. Its fields must not be changed; its methods and
// those of its hosts may be called concurrently.
type Testbed struct {
	Client     *Host // the first of Clients, or nil
	Clients    []*Host
	Node       *Host // where the proxy under test runs
	Pods       []*Host
	RemoteNode *Host // reached by routing; nil without remote pods. It forwards and does nothing else.
	RemotePods []*Host
	Router     *Host // the switch that all hosts but pods are plugged into

	starter *starter
	hosts   []*Host
	here    bool // Node is the host of this process
	closing sync.Once
}

// New builds the hosts, links, addresses, and routes. The caller owns the result
// and must close it. The error wraps [ErrUnsupported] if it cannot be done here.
func New(cfg Config) (*Testbed, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	tb := &Testbed{starter: newStarter()}
	if err := tb.build(cfg); err != nil {
		tb.Close()
		if notAllowed(err) {
			return nil, fmt.Errorf("build testbed: %w: %w", ErrUnsupported, err)
		}
		return nil, fmt.Errorf("build testbed: %w", err)
	}
	return tb, nil
}

// Close kills the processes that were started in the hosts and gives the hosts
// up. A namespace lives on, unreachable, while a socket made in it is open: close
// servers and connections first. Close may be called more than once.
func (tb *Testbed) Close() {
	tb.closing.Do(func() {
		tb.starter.close()
		if tb.here {
			tb.Node.unplug()
		}
		for _, h := range tb.hosts {
			h.ns.close()
		}
	})
}
