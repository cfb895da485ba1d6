package cli

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

// Command is a subcommand that reads its own flags.
type Command struct {
	Name, Short string
	Run         func(args []string, stdout io.Writer) error
	Hidden      bool
}

// Root returns the program's subcommands: those of this package, others, and shell completion. It does not serve: the
// flags for that are the config package's.
func Root(others []Command, stdout, stderr io.Writer) *cobra.Command {
	cobra.MousetrapHelpText = "" // on Windows the program may be started by anything
	root := &cobra.Command{Use: "sluice", SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		Short: "Balances Kubernetes Services"}
	root.SetOut(stdout)
	root.SetErr(stderr)
	usual := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if c == root {
			fmt.Fprint(stdout, config.Usage())
			return
		}
		usual(c, args)
	})
	for _, c := range commands {
		root.AddCommand(c(&view{out: stdout, errs: stderr}))
	}
	for _, c := range others {
		root.AddCommand(&cobra.Command{Use: c.Name, Short: c.Short, Hidden: c.Hidden, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error { return c.Run(args, stdout) }})
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(cobra.ShellCompRequestCmd)
	return root
}

// Has reports whether the first argument is a command, and not one of the serving program's flags.
func Has(root *cobra.Command, name string) bool {
	if name == cobra.ShellCompRequestCmd || name == cobra.ShellCompNoDescRequestCmd {
		return true
	}
	is := func(c *cobra.Command) bool { return c.Name() == name || c.HasAlias(name) }
	return slices.ContainsFunc(root.Commands(), is)
}

// Unknown is the error of a first argument that is no command.
func Unknown(root *cobra.Command, name string) error {
	root.SuggestionsMinimumDistance = 2
	if near := root.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("there is no such command: did you mean %s? (see sluice --help)", strings.Join(near, " or "))
	}
	return errors.New("there is no such command (see sluice --help)")
}

// commands are the commands of this package.
var commands = []func(*view) *cobra.Command{status, services, endpoints, connections, clients, top, events, watch,
	settings, drain, support}

// The forms of output.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
)

// view is what a command looks at, and how it shows that.
type view struct {
	out, errs io.Writer
	socket    string
	form      string
	namespace string
	noHeaders bool
}

// flags adds those that all commands have.
func (v *view) flags(c *cobra.Command) *cobra.Command {
	f := c.Flags()
	f.SortFlags = false
	f.SetNormalizeFunc(SocketAlias)
	f.StringVar(&v.socket, "api-socket", config.DefaultAPISocket, "`PATH` that the running process was given")
	f.StringVarP(&v.form, "output", "o", asTable, "`FORM` of the output: table, wide, json or yaml")
	f.BoolVar(&v.noHeaders, "no-headers", false, "print no headers above tables")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{asTable, asWide, asJSON, asYAML},
		cobra.ShellCompDirectiveNoFileComp))
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !slices.Contains([]string{asTable, asWide, asJSON, asYAML}, v.form) {
			return fmt.Errorf("--output %q is unknown: give table, wide, json or yaml", v.form)
		}
		return run(c, args)
	}
	return c
}

// SocketAlias takes --socket for --api-socket, as scripts may have it.
func SocketAlias(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "socket" {
		name = "api-socket"
	}
	return pflag.NormalizedName(name)
}

// ofServices adds the flags and arguments by which Services are chosen.
func (v *view) ofServices(c *cobra.Command) *cobra.Command {
	c.Flags().StringVarP(&v.namespace, "namespace", "n", "", "`NAMESPACE` of the Services; empty: all")
	c.Args = cobra.MaximumNArgs(1)
	c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		q := url.Values{}
		give(q, "namespace", v.namespace)
		all, _ := api.All[api.Service](c.Context(), v.client(), "services", q) // without a process there are none
		var names []string
		for i := range all {
			name := all[i].Name
			if v.namespace == "" {
				name = all[i].Namespace + "/" + name
			}
			names = append(names, clean(name))
		}
		return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
	}
	return v.flags(c)
}

func (v *view) client() *api.Client { return api.NewClient(v.socket) }

// query returns the parameters that the flags and a name, or NAMESPACE/NAME, stand for.
func (v *view) query(args []string) (url.Values, error) {
	q, namespace := url.Values{}, v.namespace
	if len(args) > 0 {
		name := args[0]
		if of, rest, ok := strings.Cut(name, "/"); ok {
			if namespace != "" && namespace != of {
				return nil, fmt.Errorf("--namespace %s contradicts %s: give one of them", namespace, args[0])
			}
			namespace, name = of, rest
		}
		name, port, ported := strings.Cut(name, ":")
		if ported && port == "" {
			return nil, fmt.Errorf("the port of %s is empty: give its name or its number", args[0])
		}
		give(q, "port", port)
		if name == "" {
			return nil, errors.New("the name of the Service is empty: give NAME or NAMESPACE/NAME")
		}
		q.Set("name", name)
	}
	give(q, "namespace", namespace)
	return q, nil
}

func give(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}
