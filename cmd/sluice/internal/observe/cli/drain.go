package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

func drain(v *view) *cobra.Command {
	var service string
	var deadline time.Duration
	var undo, force bool
	c := v.flags(&cobra.Command{Use: "drain [ENDPOINT|node/NODE]", Args: cobra.MaximumNArgs(1),
		Short: "Keep new connections from endpoints, or list what is drained",
		Long: "Sends no new connections to an endpoint: 10.0.0.1 for all its ports, 10.0.0.1:8080 or\n" +
			"[fd00::1]:80. node/NAME drains all endpoints with this nodeName. The drain applies to the Sluice\n" +
			"of this node only, so run the command on each node. It works on every data path and through\n" +
			"hand-overs, until --undo or until Sluice is stopped. Without an argument the command lists what\n" +
			"is drained.\n\n" +
			"Open connections stay, unless --deadline is given. Then Sluice resets them at the deadline. A\n" +
			"client that the kernel forwards gets its reset with its next packet.",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				for _, flag := range []string{"service", "deadline", "undo", "force"} {
					if c.Flags().Changed(flag) {
						return fmt.Errorf("--%s needs an endpoint or a node: give one like 10.0.0.1:8080", flag)
					}
				}
				all, err := api.All[api.Drain](c.Context(), v.client(), "drains", nil)
				if err != nil {
					return err
				}
				return v.show(list(all), func() *table { return drainsTable(all) })
			}
			q := url.Values{"endpoint": {args[0]}}
			if service != "" {
				namespace, name, ok := strings.Cut(service, "/")
				if !ok || namespace == "" || name == "" {
					return fmt.Errorf("--service %q is no Service: give NAMESPACE/NAME", service)
				}
				q.Set("namespace", namespace)
				q.Set("name", name)
			}
			method := http.MethodPost
			switch {
			case undo && (force || deadline != 0):
				return errors.New("--undo takes neither --deadline nor --force")
			case undo:
				method = http.MethodDelete
			case deadline < 0:
				return fmt.Errorf("--deadline %s is before now: give how long connections may stay", deadline)
			case deadline > 0:
				q.Set("deadline", deadline.String())
			}
			if force {
				q.Set("force", "true")
			}
			var one api.Drain
			if err := v.client().Do(c.Context(), method, "drains", q, &one); err != nil {
				return err
			}
			return v.say(one, drainedText(&one, undo))
		}})
	f := c.Flags()
	f.StringVar(&service, "service", "", "drain the endpoint of this Service only: `NAMESPACE/NAME`")
	f.DurationVar(&deadline, "deadline", 0,
		"reset connections that are still open after this `TIME`, at most 720h; 0 keeps them")
	f.BoolVar(&undo, "undo", false, "send new connections again")
	f.BoolVar(&force, "force", false, "drain the last endpoint of a Service, or an endpoint that does not exist yet")
	return c
}

// drainedText says what was done.
func drainedText(d *api.Drain, undo bool) string {
	switch {
	case undo:
		return d.Endpoint + " is not drained any more"
	case d.Endpoints == 1:
		return d.Endpoint + " is drained by this node's Sluice: one endpoint of a Service port"
	}
	return fmt.Sprintf("%s is drained by this node's Sluice: %d endpoints of Service ports", d.Endpoint, d.Endpoints)
}

func drainsTable(all []api.Drain) *table {
	t := &table{header: []string{"ENDPOINT", "SERVICE", "ENDPOINTS", "DEADLINE", "BY"}}
	for _, d := range all {
		service, deadline := "<all>", "never"
		if d.Name != "" {
			service = d.Namespace + "/" + d.Name
		}
		if d.Deadline != nil {
			deadline = d.Deadline.Format(time.RFC3339)
		}
		t.add(d.Endpoint, service, d.Endpoints, deadline, d.By)
	}
	return t
}
