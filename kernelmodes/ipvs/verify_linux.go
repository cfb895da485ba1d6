package ipvs

import (
	"context"
	"maps"
	"slices"
)

func (e *Engine) verify(ctx context.Context) (bool, error) {
	if e.want == nil {
		return true, nil
	}
	if !e.want.rules.Known() {
		return false, nil
	}
	t, err := open(e.IPv6, &e.writes)
	if err != nil {
		return false, err
	}
	defer t.Close()
	intact, err := e.intact(ctx, t)
	if err != nil || !intact {
		e.want.rules.Forget()
		return false, err
	}
	if len(e.want.pending) > 0 { // something drains
		err = e.write(ctx, t)
	}
	return true, err
}

// intact reports whether the kernel holds what was written.
func (e *Engine) intact(ctx context.Context, t table) (bool, error) {
	if intact, err := e.want.rules.Verify(ctx); err != nil || !intact {
		return false, err
	}
	onOurs, up, err := onInterface(e.IPv6)
	if err != nil || !up || !e.want.addresses.Match(slices.Collect(maps.Keys(onOurs))) {
		return false, err
	}
	have, err := t.read(func(x key) bool { return e.servers[x] != nil })
	if err != nil {
		return false, err
	}
	return maps.EqualFunc(have, e.servers, func(a, b *held) bool {
		return a.same(b.server) && maps.Equal(a.weights, b.weights)
	}), nil
}
