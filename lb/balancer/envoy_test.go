package balancer

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// outlierCases are what the suites of Envoy (outlier_detection_impl_test.cc) and grpc-go (outlierdetection) demand of
// outlier detection, as far as it is of connections: not those of HTTP codes, gateway failures and success rates,
// which a proxy of connections does not see, nor of their configuration, loggers and threads. Where they eject the
// only host of a cluster there is a second one here that answers, since Sluice never ejects the last one. The service
// is of UDP, so that a host returns when its time is over, as theirs does, and not by a trial.
//
// A case is the number of hosts and then steps: "NAME=VALUE" a parameter, times in ms; "fail HOST TIMES"; "ok HOST
// TIMES"; "at MS" the time; "judge" the interval; "hosts N" how many there are now; "is HOSTS" who must be ejected;
// "counts ENFORCED OVERFLOW" what must have been counted.
var outlierCases = map[string]string{
	// Envoy.
	"BasicFlowLocalOriginFailure": "2; fail 0 1; ok 0 1; fail 0 4; ok 1 1; is -; fail 0 1; is 0; counts 1 0; at 9999; is 0; at 30001; is -; " +
		"ok 0 1; fail 0 4; ok 1 1; is -; at 40000; fail 0 1; is 0; counts 2 0; hosts 0; is -",
	"RemoveWhileEjected":           "2; fail 0 4; ok 1 1; fail 0 1; is 0; hosts 0; is -; hosts 2; is -; at 9999; is -",
	"Overflow":                     "3; percent=34; fail 0 4; ok 2 1; fail 0 1; is 0; fail 1 4; ok 2 1; fail 1 1; is 0; counts 1 1",
	"NotEnforcing":                 "2; enabled=0; fail 0 4; ok 1 1; fail 0 4; is -; counts 0 0",
	"Consecutive5xxAlreadyEjected": "2; fail 0 4; ok 1 1; fail 0 1; is 0; counts 1 0; fail 0 5; ok 1 1; fail 0 1; is 0; counts 1 0",
	"LargeNumberOfTimeouts":        "3; fail 0 1; ok 1 1; fail 0 199; is 0; counts 1 0",
	// The multiplier goes down by one for each interval in which it is not ejected.
	"EjectTimeBackoff": "2; base=10000; interval=10000; fail 0 4; ok 1 1; fail 0 1; is 0; at 9999; is 0; at 10000; is -; ok 0 1; " +
		"fail 0 4; ok 1 1; fail 0 1; is 0; at 29999; is 0; at 30000; is -; ok 0 1; fail 0 4; ok 1 1; fail 0 1; is 0; at 59999; is 0; at 60000; is -; " +
		"ok 0 1; at 80000; fail 0 4; ok 1 1; fail 0 1; at 99999; is 0; at 100000; is -",
	"MaxEjectTime": "2; base=10000; max=30000; interval=10000; fail 0 4; ok 1 1; fail 0 1; at 10000; is -; ok 0 1; fail 0 4; ok 1 1; fail 0 1; at 30000; is -; ok 0 1; " +
		"fail 0 4; ok 1 1; fail 0 1; at 60000; is -; ok 0 1; fail 0 4; ok 1 1; fail 0 1; at 89999; is 0; at 90000; is -",
	"MaxEjectTimeNotHigherThanBase": "2; base=30000; max=10000; fail 0 4; ok 1 1; fail 0 1; at 29999; is 0; at 30000; is -",
	"BasicFlowFailurePercentage": "6; row=1000; share=85; ok 0 10; ok 1 50; ok 2 50; ok 3 50; ok 4 50; ok 5 3; fail 5 47; judge; is 5; counts 1 0; " +
		"at 9999; is 5; at 30001; is -",
	"FailurePercentageThreshold": "5; row=1000; share=40; ok 0 50; ok 1 50; ok 2 50; fail 3 19; ok 3 31; fail 4 20; ok 4 30; judge; is 4; counts 1 0; " +
		"at 10000; ok 0 50; ok 1 50; ok 2 50; fail 3 50; judge; is 4; counts 1 0",
	"FailurePercentageMinimumHosts": "5; row=1000; share=40; ok 0 50; ok 1 50; ok 2 50; ok 3 49; fail 4 50; judge; is -; counts 0 0",
	"FailurePercentageNewInterval":  "5; row=1000; share=85; ok 0 50; ok 1 50; ok 2 50; ok 3 50; fail 4 25; judge; at 10000; fail 4 25; judge; is -",

	// grpc-go.
	"three_upstreams_one_failure":                            "3; row=1000; share=50; minimum=3; volume=3; ok 0 3; ok 1 3; fail 2 3; judge; is 2; counts 1 0",
	"three_upstreams_no_failure":                             "3; row=1000; share=50; minimum=3; volume=3; ok 0 3; ok 1 3; ok 2 3; judge; is -; counts 0 0",
	"three_upstreams_one_failure_no_ejection_enforcement":    "3; row=1000; share=0; minimum=3; volume=3; ok 0 3; ok 1 3; fail 2 3; judge; is -; counts 0 0",
	"three_upstreams_one_failure_no_ejection_max_perc":       "3; row=1000; share=50; minimum=3; volume=3; percent=0; ok 0 3; ok 1 3; fail 2 3; judge; is -; counts 0 1",
	"TestEjectFailureRate, all below the volume":             "3; row=1000; share=50; minimum=3; volume=5; ok 0 4; ok 1 4; fail 2 4; judge; is -; counts 0 0",
	"TestEjectFailureRate, ejected and back after its time":  "3; row=1000; share=50; minimum=3; volume=3; ok 0 3; ok 1 3; fail 2 3; judge; is 2; at 30000; is -",
	"TestUnejectOnRemovedPolicy, what is not enabled ejects": "2; fail 0 4; ok 1 1; fail 0 1; is 0; off; is -",
}

func TestOutlierCases(t *testing.T) {
	for name, text := range outlierCases {
		t.Run(name, func(t *testing.T) { newOutlierCase(t).run(text) })
	}
}

// outlierCase is a case that runs.
type outlierCase struct {
	t   *testing.T
	b   *Balancer
	now int64
}

func newOutlierCase(t *testing.T) *outlierCase {
	return &outlierCase{t: t, b: &Balancer{Outlier: lb.DefaultOutlier}}
}

func (c *outlierCase) run(text string) {
	steps := strings.Split(text, "; ")
	c.hosts(c.number(steps[0]), lb.NotGiven)
	for _, step := range steps[1:] {
		words := strings.Fields(step)
		switch name, value, parameter := strings.Cut(step, "="); {
		case parameter:
			c.parameter(name, c.number(value))
		case words[0] == "at":
			c.now = int64(c.number(words[1])) * 1e6
			c.b.Health().Trials(c.now, 9)
		case words[0] == "judge":
			c.b.Health().JudgeShares(c.now)
		case words[0] == "hosts":
			c.hosts(c.number(words[1]), lb.NotGiven)
		case words[0] == "off":
			c.hosts(len(c.b.Table().At(0).Backends), lb.Off)
		case words[0] == "is":
			c.is(step, words[1:])
		case words[0] == "counts":
			if s := c.b.Health().Stats(); s.Enforced != uint64(c.number(words[1])) || s.Overflow != uint64(c.number(words[2])) {
				c.t.Errorf("%s: %+v", step, s)
			}
		default:
			c.load(words[0] == "ok", c.number(words[1]), c.number(words[2]))
		}
	}
}

func (c *outlierCase) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

func (c *outlierCase) parameter(name string, value int) {
	o, ms := &c.b.Outlier, int64(value)*1e6
	switch name {
	case "enabled":
		o.Enabled = value > 0
	case "percent":
		o.MaxEjectionPercent = value
	case "row":
		o.ConsecutiveFailures = value
	case "share":
		o.FailurePercentage = value
	case "minimum":
		o.FailureMinimumHosts = value
	case "volume":
		o.FailureRequestVolume = value
	case "base":
		o.BaseEjectionTime = ms
	case "max":
		o.MaxEjectionTime = ms
	case "interval":
		o.Interval = ms
	default:
		c.t.Fatalf("no parameter %q", name)
	}
}

func (c *outlierCase) hosts(n int, ejection lb.Switch) {
	s := echo(numbers(n)...)
	s.Protocol, s.Policies = lb.UDP, &lb.Policies{OutlierEjection: ejection}
	c.b.Update(mustTable(c.t, []lb.Service{s}))
}

// load reports connections to one host, as if it had been picked, also if it is ejected.
func (c *outlierCase) load(ok bool, host, times int) {
	id := c.b.Table().At(0).ID
	for range times {
		choice := c.b.Memory().Resume(id, address(host))
		choice.backend.counter.Add(1) // Resume takes for granted that another Balancer has counted it
		if ok {
			choice.Answered()
			choice.Done(nil)
		} else {
			choice.Failed(errRefused, c.now)
		}
	}
}

func (c *outlierCase) is(step string, want []string) {
	var got []string
	for _, s := range c.b.Counters().All() {
		for i, k := range s.Backends {
			if k.Health.Ejected {
				got = append(got, fmt.Sprint(i))
			}
			if k.Live && k.Health.Ejected == k.Eligible {
				c.t.Errorf("%s: host %d is ejected: %v, eligible: %v", step, i, k.Health.Ejected, k.Eligible)
			}
		}
	}
	if len(got) == 0 {
		got = []string{"-"}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		c.t.Errorf("at %d ms, %s: ejected are %v", c.now/1e6, step, got)
	}
}
