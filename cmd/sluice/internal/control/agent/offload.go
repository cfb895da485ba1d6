package agent

import (
	"context"
	"fmt"
)

// Offload moves to path nftables, or else iptables, what user space forwards in the families of which the kernel
// forwards packets, since this process is to end: rules go on without it, until the next start takes the Services
// back. It returns how many service ports are left in user space, as those for which this host has no such path. Node
// ports keep their sockets meanwhile, which serve them at loopback addresses.
//
// It is for after Run, and may be called again after an error.
func (a *Agent) Offload(ctx context.Context, forwards [2]bool) (left int, err error) {
	a.offload, a.pace.period, a.patient = forwards, 0, true
	want := a.want
	if next := a.progress.latest(&a.applying); next != nil {
		want = *next
	}
	_, err = a.apply(ctx, want) // without a pace there is nothing to wait for
	for _, x := range a.planner.ports {
		if x.piece.choice.Path == Userspace {
			left++
		}
	}
	return left, err
}

// HandClients has the kernel know the clients with affinity of path queue, for which it is to choose from now on: this
// process is to end. It is for after Run.
func (a *Agent) HandClients(ctx context.Context) error {
	resume, err := a.Pause(ctx)
	if err != nil {
		return fmt.Errorf("leave clients to the kernel: %w", err)
	}
	defer resume()
	for _, x := range a.planner.ports {
		engine := a.Families[family(x.service.IPv6)].Engines[Queue]
		if x.piece.choice.Path != Queue || x.service.AffinityTimeout == 0 || engine == nil {
			continue
		}
		if err := a.hand(ctx, x.piece.kernel, nil, engine); err != nil {
			return err
		}
	}
	return nil
}

// Withdraw closes every listening socket, TCP proxy ports included, after Offload has left nothing to user space.
func (a *Agent) Withdraw(ctx context.Context) error {
	resume, err := a.Pause(ctx) // everything may be being handed over
	if err != nil {
		return fmt.Errorf("close listening sockets: %w", err)
	}
	defer resume()
	for f := range a.sockets.open {
		a.sockets.close(f)
	}
	for _, at := range a.Proxy.Steered() {
		a.Proxy.Unlisten(at)
	}
	return nil
}
