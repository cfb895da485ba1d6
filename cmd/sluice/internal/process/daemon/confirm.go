package daemon

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/lb"
)

const (
	mostNamed      = 10               // Services in a question
	confirmTimeout = 10 * time.Second // for the answers of the running process
)

// confirm asks who has started this process by hand whether Services of the running process may go. Where no one can
// answer, or the running process does not say what it serves, they go without a question.
func (d *daemon) confirm(ctx context.Context, stop <-chan struct{}, desired *agent.Desired) error {
	path := d.Config.Process.APISocket
	if d.Ask == nil || !d.Upgrade.Unasked() || path == config.NoSocket {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	c := api.NewClient(path)
	var running api.Status
	if c.Get(ctx, "status", nil, &running) != nil || running.NetNS != netNS() {
		return nil
	}
	served, err := api.All[api.Service](ctx, c, "services", url.Values{})
	if err != nil {
		return nil //nolint:nilerr // as where it has no API
	}
	lost := losses(served, desired)
	if len(lost) == 0 {
		return nil
	}
	names := strings.Join(lost[:min(len(lost), mostNamed)], ", ")
	if more := len(lost) - mostNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	if d.Ask(stop, fmt.Sprintf("Process %d serves %s. If this process takes over, it removes the Services that it "+
		"does not have: %s.\nTake over?", running.PID, from(&running.Source), names)) {
		return nil
	}
	return fmt.Errorf("process %d goes on: give its manifests, too, or --yes to remove these Services", running.PID)
}

// from names the source of the Services of the running process.
func from(s *api.Source) string {
	if s.APIServer != "" {
		return "Services from the API server " + s.APIServer
	}
	return "the manifests " + strings.Join(s.Manifests, ", ")
}

// losses are the Services that are served and not desired.
func losses(served []api.Service, desired *agent.Desired) (names []string) {
	have := make(map[lb.Name]bool)
	for _, s := range desired.Services.AppendTo(nil) {
		have[s.ID.Service()] = true
	}
	for i := range served {
		of := lb.Name{Namespace: served[i].Namespace, Name: served[i].Name}
		if !have[of] {
			have[of] = true // it may have more ports
			names = append(names, of.Namespace+"/"+of.Name)
		}
	}
	return names
}
