// Package config turns the command line, and the configuration file that it may
// name, into a checked Config. Both are kube-proxy's, from 1.8 to 1.36, with flags
// of Sluice's own added. Every default is written once, here.
//
// Flags and the fields of the file fill the same Document. Where there is a file it
// counts, as in kube-proxy; beside it count --hostname-override, --master, the flags
// of the log, those that have the program do something else and exit, and those
// that stand for no field. What is asked for in vain ends up in Config.Warnings: a
// flag or field that has no meaning here, a flag that the file overrules, a field
// that nobody knows.
package config
