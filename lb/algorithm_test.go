package lb

import "testing"

func TestParseScheduler(t *testing.T) {
	for requested, want := range map[string]string{
		"": "rr", "rr": "rr", "wrr": "rr", "lc": "lc", " WLC ": "lc", "p2c": "p2c", "ewma": "ewma", "random": "random",
		"sh": "sh", "sh,sh-port": "sh,sh-port", "sh,sh-fallback, sh-port": "sh,sh-port", "mh": "maglev", "maglev": "maglev",
		"mh,mh-port,mh-fallback": "maglev,mh-port", "maglev,mh-port": "maglev,mh-port",
	} {
		if got, err := ParseScheduler(requested); got.String() != want || err != nil {
			t.Errorf("%q: got %q, %v; want %q", requested, got, err, want)
		}
	}
	for _, requested := range []string{"sed", "nq", "dh", "lblc", "fastest", "rr,mh-port", "mh,sh-port", "sh,once"} {
		if got, err := ParseScheduler(requested); got.String() != "rr" || err == nil {
			t.Errorf("%q: got %q, %v; want rr and why", requested, got, err)
		}
	}
}
