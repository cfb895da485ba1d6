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

// removal is what happens to connections when their endpoint leaves the Service.
type removal struct{}

// Values of lb.Policies.OnEndpointRemoved, besides durations.
const (
	keep     = -1
	resetNow = 1
)

func (k removal) set(p *lb.Policies, value string) error {
	what, after, timed := strings.Cut(strings.TrimSpace(value), ":")
	d, err := time.ParseDuration(after)
	switch {
	case what == "keep" && !timed:
		p.OnEndpointRemoved = keep
	case what == "reset" && !timed:
		p.OnEndpointRemoved = resetNow
	case what == "reset-after" && err == nil && d > 0 && d <= month:
		p.OnEndpointRemoved = int64(d)
	default:
		return fmt.Errorf("give %s%s", k.values(), meant(what, []string{"keep", "reset", "reset-after"}))
	}
	return nil
}

func (removal) get(p *lb.Policies) string {
	switch d := p.OnEndpointRemoved; {
	case d == 0:
		return ""
	case d < 0:
		return "keep"
	case d == resetNow:
		return "reset"
	default:
		return "reset-after:" + time.Duration(d).String()
	}
}

func (removal) values() string {
	return "keep, reset, or reset-after:DURATION up to " + round(month) + ", like reset-after:30s"
}

// age is how old a connection may get, and the percent by which chance shortens that.
type age struct{ duration }

func (k age) set(p *lb.Policies, value string) error {
	after, jitter, given := strings.Cut(value, "/")
	percent := int64(-1)
	if given {
		number, ok := strings.CutSuffix(strings.TrimSpace(jitter), "%")
		n, err := strconv.ParseInt(number, 10, 32)
		if !ok || err != nil || n < 1 || n > 100 {
			return fmt.Errorf("give %s", k.values())
		}
		percent = n
	}
	if k.duration.set(p, after) != nil {
		return fmt.Errorf("give %s", k.values())
	}
	p.MaxConnectionJitter = int32(percent)
	return nil
}

func (k age) get(p *lb.Policies) string {
	d := k.duration.get(p)
	if p.MaxConnectionDuration > 0 && p.MaxConnectionJitter > 0 {
		return fmt.Sprintf("%s/%d%%", d, p.MaxConnectionJitter)
	}
	return d
}

func (k age) values() string { return k.duration.values() + "; with a jitter from 1% to 100%: 1h/10%" }

// keepalive is when the kernel probes a connection, how often, and how many probes end it.
type keepalive struct{}

func (k keepalive) set(p *lb.Policies, value string) error {
	parts := strings.Split(value, "/")
	var times [2]int64
	var probes int64
	for i, part := range parts {
		part = strings.TrimSpace(part)
		d, err := time.ParseDuration(part)
		if i == len(times) {
			if probes, err = strconv.ParseInt(part, 10, 32); probes < 1 || probes > 127 {
				err = strconv.ErrRange
			}
		} else if i > len(times) || d < time.Second || d > longestKeepalive {
			err = strconv.ErrRange
		} else {
			times[i] = int64(d)
		}
		if err != nil {
			return fmt.Errorf("give %s", k.values())
		}
	}
	p.KeepaliveIdle, p.KeepaliveInterval, p.KeepaliveProbes = times[0], times[1], int32(probes)
	return nil
}

func (keepalive) get(p *lb.Policies) string {
	if p.KeepaliveIdle == 0 {
		return ""
	}
	out := time.Duration(p.KeepaliveIdle).String()
	if p.KeepaliveInterval != 0 {
		out += "/" + time.Duration(p.KeepaliveInterval).String()
	}
	if p.KeepaliveProbes != 0 {
		out += "/" + strconv.Itoa(int(p.KeepaliveProbes))
	}
	return out
}

// longestKeepalive is Linux' MAX_TCP_KEEPIDLE and MAX_TCP_KEEPINTVL (include/net/tcp.h).
const longestKeepalive = 32767 * time.Second

func (keepalive) values() string {
	return "IDLE, IDLE/INTERVAL or IDLE/INTERVAL/PROBES: durations from 1s to " + round(longestKeepalive) +
		" and a number from 1 to 127, like 15s/15s/9"
}
