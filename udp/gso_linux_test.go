package udp

import "testing"

// TestCorruptsGSO: Linux 7.0 to 7.1.4, whatever a distribution appends.
func TestCorruptsGSO(t *testing.T) {
	for release, want := range map[string]bool{
		"6.18.0": false, "6.19.14-generic": false, "7.0": true, "7.0.0-rc3": true, "7.0.12-cloud-amd64": true,
		"7.1.4": true, "7.1-rc1": true,
		"7.1.5": false, "7.1.12": false, "7.2.0": false, "8.0.1": false, "": false, "plan9": false,
	} {
		if got := corruptsGSO(release); got != want {
			t.Errorf("corruptsGSO(%q) = %v, want %v", release, got, want)
		}
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
