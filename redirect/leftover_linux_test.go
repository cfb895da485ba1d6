package redirect

import "testing"

func TestTargetPort(t *testing.T) {
	for rule, want := range map[string]uint16{
		`-A SLUICE-TCP -p tcp -m set --match-set SLUICE4-tcp dst,dst -m comment --comment "sluice: to the TCP proxy" -j REDIRECT --to-ports 36833`: 36833,
		"-A SLUICE-TCP -d 10.96.0.1/32 -p tcp -j DNAT --to-destination 192.0.2.1:31000":                                                            31000,
		"-A SLUICE-TCP -p tcp -j DNAT --to-destination [2001:db8::1]:31000":                                                                        31000,
		"-A SLUICE-TCP -p tcp -j REDIRECT --to-ports x":                                                                                            0,
		"-A SLUICE-TCP -p tcp -j RETURN":                                                                                                           0,
	} {
		if got := targetPort(rule); got != want {
			t.Errorf("port %d, want %d, in %s", got, want, rule)
		}
	}
}
