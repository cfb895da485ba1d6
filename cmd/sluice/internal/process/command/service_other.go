//go:build !windows

package command

import "context"

// underServiceManager just runs: there is a service manager to talk to on Windows only.
func underServiceManager(ctx context.Context, run func(context.Context) error) error { return run(ctx) }
