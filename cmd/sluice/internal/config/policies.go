package config

import (
	"github.com/sluice-lb/sluice/cmd/sluice/internal/policies"
	"github.com/sluice-lb/sluice/lb"
)

// policyFlag is a policy for all Services that do not request another. It is a pflag.Value.
type policyFlag struct {
	policy *policies.Policy
	all    *lb.Policies
}

// Set takes an empty value, as "$VAR" leaves it, for the default.
func (f policyFlag) Set(value string) error {
	if value == "" {
		return nil
	}
	return f.policy.Set(f.all, value)
}

func (f policyFlag) Type() string { return f.policy.Type() }

func (f policyFlag) String() string {
	if f.policy == nil { // pflag asks a zero value
		return ""
	}
	if given := f.policy.Get(f.all); given != "" {
		return given
	}
	return f.policy.Default
}

// policyOptions returns the flags that come from the table of policies.
func (s *settings) policyOptions() (out []option) {
	for _, p := range policies.All() {
		if p.Flag != "" && !p.OwnFlag {
			out = append(out, option{p.Flag, p.Field, policyFlag{p, &s.DataPath.Policies},
				p.Means + ". The annotation " + p.Annotation() + " of a Service takes precedence"})
		}
	}
	return out
}
