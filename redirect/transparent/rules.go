package transparent

import "context"

// Rules are those of both families. Fields are set before the first call. It is for one goroutine.
type Rules struct {
	Mark uint32 // the bit of a packet's mark that is used; needed where Sync turns rules on

	state // of the platform
}

// Sync makes the rules of a family be there, or not.
func (r *Rules) Sync(ipv6, on bool) error { return r.sync(ipv6, on) }

// Verify reports whether all that Sync has made is there. What is not, the next Sync makes again.
func (r *Rules) Verify() bool { return r.verify() }

// On reports whether the last Sync of a family made the rules be there.
func (r *Rules) On(ipv6 bool) bool { return r.isOn(ipv6) }

// Cleanup removes what any process has left. An error wraps errors.ErrUnsupported where there can be nothing.
func Cleanup(ctx context.Context) error { return cleanup(ctx) }
