package engine

import (
	"cmp"
	"time"

	"github.com/sluice-lb/sluice/internal/session"
)

// Config is what a Server lets its user set. Of session.Config's the packet engine has no use for MaxDials, nor for
// Descriptors: it has a few for all associations.
type Config struct {
	session.Config

	// MaxAssociations bounds the associations of the packet engine, those included that have just ended or are not
	// established. Every loop has an equal share. When a share is used up the oldest that has ended makes room, or
	// else the oldest that is not established. 0: 65,536.
	MaxAssociations int

	// IdleTimeout is how long an association of the packet engine may pass nothing before both sides are aborted.
	// Heartbeats pass (RFC 9260 section 8.3; every 30 s by default), so that it drops endpoints that have vanished;
	// the socket engine has the kernel send and answer them. 0: 15 min. Negative: no limit.
	IdleTimeout time.Duration
}

// WithDefaults returns c with a value for each field that is zero.
func (c Config) WithDefaults() *Config {
	c.Config = c.Config.WithDefaults()
	c.MaxAssociations = cmp.Or(c.MaxAssociations, 65536)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 15*time.Minute)
	return &c
}
