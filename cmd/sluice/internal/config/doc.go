// Package config turns the command line, and the configuration file that it may
// name, into a checked Config. Both are kube-proxy's, from 1.8 to 1.37, with flags
// of Sluice's own added. Names, defaults, fields and help of all flags are one table
// (options.go), from which docs/reference/flags.md is written.
//
// Flags and the fields of the file fill the same Document. A file takes precedence,
// as in kube-proxy; in effect beside it are --hostname-override, the flags of the log,
// and those that stand for no field. Config.Warnings names what is ignored: a flag or
// field without a meaning here, a flag that the file overrules, an unknown field.
package config
