package command

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// unknown is the version or the commit of a program without a record of it.
const unknown = "unknown"

// Build says what the program was built from.
type Build struct {
	Version string
	Commit  string
}

// Complete fills what is empty from Go's record of the build: "go build" in a clone writes it.
func (b Build) Complete() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return b.with(info)
}

func (b Build) with(info *debug.BuildInfo) Build {
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = unknown
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if b.Commit == "" {
		b.Commit = settings["vcs.revision"]
		if settings["vcs.modified"] == "true" {
			b.Commit += "-dirty"
		}
	}
	return b
}

// print prints the version, the revision and Go's version; in the form raw as kube-proxy does.
func (b Build) print(w io.Writer, form string) {
	if form == "raw" {
		fmt.Fprintf(w, "version.Info{GitVersion:%q, GitCommit:%q, GoVersion:%q, Compiler:%q, Platform:%q}\n",
			b.Version, b.Commit, runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
		return
	}
	commit := b.Commit
	if commit == "" {
		commit = unknown
	}
	fmt.Fprintf(w, "sluice %s (revision %s, %s %s/%s)\n",
		b.Version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
