package config

import (
	"fmt"
	"strings"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
)

// defaultPolicy is the value of --default-policy: what holds for Services that do not request otherwise. It is a
// pflag.Value, and each use of the flag adds one policy.
type defaultPolicy struct{ all *lb.Policies }

// Set takes an empty value, as "$VAR" leaves it, for none.
func (d defaultPolicy) Set(value string) error {
	if value == "" {
		return nil
	}
	word, value, ok := strings.Cut(value, "=")
	if !ok {
		return fmt.Errorf("give KEY=VALUE, like scheduler=lc")
	}
	return policies.SetDefault(d.all, strings.TrimSpace(word), value)
}

// Type is how errors and reference pages name the value.
func (d defaultPolicy) Type() string { return "KEY=VALUE" }

// String lists what is given.
func (d defaultPolicy) String() string {
	if d.all == nil { // pflag asks a zero value
		return ""
	}
	var given []string
	for _, p := range policies.All() {
		if value := p.Get(d.all); value != "" {
			given = append(given, p.Word+"="+value)
		}
	}
	return strings.Join(given, " ")
}
