package upgrade

import "errors"

// ErrHandedOver means that another process has everything that this one served. This one
// must end at once, without closing or undoing anything.
var ErrHandedOver = errors.New("everything was handed over to another process")

// Config says where an Upgrader is found.
type Config struct {
	Socket  string // path of the handover socket; empty for none
	PIDFile string // path of the PID file; empty for none
}
