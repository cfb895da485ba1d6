// Package config turns the command line into a checked Config. Every default is
// written once, here.
package config
