// Package check is the subcommand that reads a configuration and manifests as a start does, serves nothing, and says
// everything that a start would refuse, reject or ignore, and what leads nowhere.
//
// It needs no root, changes nothing and asks no API server.
package check
