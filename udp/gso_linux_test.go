package udp

import (
	"os/exec"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestSuspectGSO: Linux 7.0 to 7.1.4, and 6.17, whatever a distribution appends.
func TestSuspectGSO(t *testing.T) {
	for release, want := range map[string]bool{
		"6.18.0": false, "6.19.14-generic": false, "7.0": true, "7.0.0-rc3": true, "7.0.12-cloud-amd64": true,
		"7.1.4": true, "7.1-rc1": true, "6.17.0-41-generic": true, "6.17.13": true, "6.1.17": false, "6.16.9": false,
		"7.1.5": false, "7.1.12": false, "7.2.0": false, "8.0.1": false, "": false, "plan9": false,
	} {
		if got := suspectGSO(release); got != want {
			t.Errorf("suspectGSO(%q) = %v, want %v", release, got, want)
		}
	}
}

// TestSegmentsUDP: a veth segments UDP until that is turned off.
func TestSegmentsUDP(t *testing.T) {
	newLab(t)
	if on, err := segmentsUDP("eth0"); !on || err != nil {
		t.Errorf("segmentsUDP = %v, %v for a veth", on, err)
	}
	if on, err := segmentsUDP("nosuch"); err == nil {
		t.Errorf("segmentsUDP = %v for an interface that does not exist, want an error", on)
	}
	if _, err := exec.LookPath("ethtool"); err != nil {
		testbed.Missing(t, err.Error())
	}
	out := testbed.Run(t, "ethtool", "-K", "eth0", "tx-udp-segmentation", "off")
	if on, err := segmentsUDP("eth0"); on || err != nil {
		t.Errorf("segmentsUDP = %v, %v after ethtool -K: %s", on, err, out)
	}
}

func TestGSOText(t *testing.T) {
	for text, want := range map[string]GSO{"auto": GSOAuto, "on": GSOOn, "true": GSOOn, "off": GSOOff, "false": GSOOff} {
		var g GSO
		if err := g.UnmarshalText([]byte(text)); err != nil || g != want {
			t.Errorf("%s is %v, %v", text, g, err)
		}
	}
	if err := new(GSO).UnmarshalText([]byte("never")); err == nil {
		t.Error("never is taken for a GSO")
	}
}

// TestDisableGSO: equal datagrams that wait together go one by one, and so do those of a
// GSO batch.
func TestDisableGSO(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, func(s *Server) { s.DisableGSO = true }, b.addr)
	exchange(t, p, b, dial(t, p.addr))
	sh := p.shards[0]
	onLoop(t, sh, func() {
		for _, out := range []*outgoing{&sh.out, &sh.again} {
			out.reset(false)
			out.add(numbered(0, 300), 100)
			out.add(numbered(1, 100), 0)
			for i := range out.pack() {
				if n := out.runs[i].datagrams; n != 1 {
					t.Errorf("%d datagrams go as one", n)
				}
			}
		}
	})
}
