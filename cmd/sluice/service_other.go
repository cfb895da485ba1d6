//go:build !windows

package main

// underServiceManager just runs: there is a service manager to talk to on Windows only.
func underServiceManager(run func() error, _ func()) error { return run() }
