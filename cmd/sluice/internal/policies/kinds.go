package policies

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// kind is what the values of a policy are, and where they are kept.
type kind interface {
	set(p *lb.Policies, value string) error
	get(p *lb.Policies) string
	values() string
	name() string // of the type of a flag
}

// duration is one of least to most; 0, where there is off, is none.
type duration struct {
	at          func(*lb.Policies) *int64
	least, most time.Duration
	off         bool
}

func (k duration) set(p *lb.Policies, value string) error {
	d, err := time.ParseDuration(strings.TrimSpace(value))
	switch {
	case err == nil && d == 0 && k.off:
		*k.at(p) = -1
	case err != nil || d < k.least || d > k.most:
		return fmt.Errorf("give %s", k.values())
	default:
		*k.at(p) = int64(d)
	}
	return nil
}

func (k duration) get(p *lb.Policies) string {
	switch d := *k.at(p); {
	case d == 0:
		return ""
	case d < 0:
		return "0s"
	default:
		return time.Duration(d).String()
	}
}

func (k duration) values() string {
	of := fmt.Sprintf("a duration from %s to %s", round(k.least), round(k.most))
	if k.least <= time.Nanosecond {
		of = fmt.Sprintf("a duration up to %s", round(k.most))
	}
	if k.off {
		of += ", or 0 for none"
	}
	return of
}

// round returns d as people write it: 24h, not 24h0m0s.
func round(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// count is a number from least to most; 0, where there is off, is none.
type count struct {
	at          func(*lb.Policies) *int32
	least, most int32
	off         bool
}

func (k count) set(p *lb.Policies, value string) error {
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
	switch {
	case err == nil && n == 0 && k.off:
		*k.at(p) = -1
	case err != nil || n < int64(k.least) || n > int64(k.most):
		return fmt.Errorf("give %s", k.values())
	default:
		*k.at(p) = int32(n)
	}
	return nil
}

func (k count) get(p *lb.Policies) string {
	switch n := *k.at(p); {
	case n == 0:
		return ""
	default:
		return strconv.Itoa(max(0, int(n)))
	}
}

func (k count) values() string {
	of := fmt.Sprintf("a number from %d to %d", k.least, k.most)
	if k.off {
		of += ", or 0 for none"
	}
	return of
}

// toggle is true or false.
type toggle struct {
	at func(*lb.Policies) *lb.Switch
}

func (k toggle) set(p *lb.Policies, value string) error {
	switch strings.TrimSpace(value) {
	case "true":
		*k.at(p) = lb.On
	case "false":
		*k.at(p) = lb.Off
	default:
		return fmt.Errorf("give %s", k.values())
	}
	return nil
}

func (k toggle) get(p *lb.Policies) string {
	return map[lb.Switch]string{lb.On: "true", lb.Off: "false"}[*k.at(p)]
}

func (toggle) values() string { return "true or false" }

// word is one of several.
type word struct {
	at    func(*lb.Policies) *string
	words []string
}

func (k word) set(p *lb.Policies, value string) error {
	if !slices.Contains(k.words, value) {
		return fmt.Errorf("give %s%s", k.values(), meant(value, k.words))
	}
	*k.at(p) = value
	return nil
}

func (k word) get(p *lb.Policies) string { return *k.at(p) }

func (k word) values() string {
	last := len(k.words) - 1
	return strings.Join(k.words[:last], ", ") + " or " + k.words[last]
}

// text is what check allows.
type text struct {
	at    func(*lb.Policies) *string
	what  string
	check func(string) error
}

func (k text) set(p *lb.Policies, value string) error {
	if strings.TrimSpace(value) == "" {
		return errors.New("it is empty: give " + k.what)
	}
	if err := k.check(value); err != nil {
		return err
	}
	*k.at(p) = value
	return nil
}

func (k text) get(p *lb.Policies) string { return *k.at(p) }
func (k text) values() string            { return k.what }

// drain is what becomes of connections whose endpoint has left.
type drain struct{}

// Values of lb.Policies.Drain, besides durations.
const (
	forGood = -1
	atOnce  = 1
)

func (k drain) set(p *lb.Policies, value string) error {
	what, after, timed := strings.Cut(strings.TrimSpace(value), ":")
	d, err := time.ParseDuration(after)
	switch {
	case value == "drain":
		p.Drain = forGood
	case value == "reset":
		p.Drain = atOnce
	case what == "drain" && timed && err == nil && d > 0 && d <= month:
		p.Drain = int64(d)
	default:
		return fmt.Errorf("give %s%s", k.values(), meant(what, []string{"drain", "reset"}))
	}
	return nil
}

func (drain) get(p *lb.Policies) string {
	switch {
	case p.Drain == 0:
		return ""
	case p.Drain < 0:
		return "drain"
	case p.Drain == atOnce:
		return "reset"
	}
	return "drain:" + time.Duration(p.Drain).String()
}

func (drain) values() string { return "drain, reset, or drain: and a duration up to " + round(month) }

func (drain) name() string    { return "string" }
func (duration) name() string { return "duration" }
func (count) name() string    { return "int" }
func (toggle) name() string   { return "bool" }
func (word) name() string     { return "string" }
func (text) name() string     { return "string" }
