// Command parts writes what a release says of the modules that are linked into its programs: their licences (NOTICE)
// and the lists of parts that scanners read, in SPDX and in CycloneDX.
//
//	go run ./deploy/release/parts -version 0.1.0 -time 1700000000 -out dist PROGRAM...
//
// The modules are those that the programs themselves name. The same programs give the same files.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// module is a part of the programs.
type module struct {
	Path, Version string
	Sum           string // of go.sum; empty for Go itself and for the program
	License       string // an SPDX expression
	Texts         []text // of its licences and notices
}

// text is a file of a module.
type text struct{ Name, Content string }

// release is what the files are about.
type release struct {
	Version string
	Time    time.Time
	Self    module
	Modules []module // Go first, then by path
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

func run() error {
	fs := flag.NewFlagSet("parts", flag.ExitOnError)
	version := fs.String("version", "", "`VERSION` of the release")
	seconds := fs.Int64("time", 0, "`SECONDS` from 1970 to the commit that is released")
	out := fs.String("out", "dist", "`FOLDER` to write to")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	if *version == "" || fs.NArg() == 0 {
		return fmt.Errorf("give -version and the programs")
	}
	r := release{Version: *version, Time: time.Unix(*seconds, 0).UTC()}
	if err := r.read(fs.Args()); err != nil {
		return err
	}
	for name, content := range map[string]any{
		"sluice_" + *version + "_sbom.spdx.json": r.spdx(), "sluice_" + *version + "_sbom.cdx.json": r.cycloneDX(),
	} {
		data, err := json.MarshalIndent(content, "", " ")
		if err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(*out, name), append(data, '\n'), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(*out, "NOTICE"), []byte(r.notice()), 0o644)
}

// read reads the modules of the programs, and their licences from the module cache.
func (r *release) read(programs []string) error {
	found := make(map[string]module)
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the parts of %s: %w", path, err)
		}
		r.Self = module{Path: info.Main.Path, Version: r.Version, License: "Apache-2.0"}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			found[m.Path] = module{Path: m.Path, Version: m.Version, Sum: m.Sum}
		}
		found[""] = module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}
	}
	folders, err := folders()
	if err != nil {
		return err
	}
	for _, m := range found {
		if err := m.license(folders[m.Path]); err != nil {
			return err
		}
		r.Modules = append(r.Modules, m)
	}
	slices.SortFunc(r.Modules, func(a, b module) int {
		if (a.Path == "std") != (b.Path == "std") {
			return map[bool]int{true: -1, false: 1}[a.Path == "std"]
		}
		return strings.Compare(a.Path, b.Path)
	})
	return nil
}

// notice returns the licences of everything that is linked.
func (r *release) notice() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Sluice %s is licensed under the Apache License 2.0 (file LICENSE).\n"+
		"Its programs contain these parts, with the licences that follow.\n\n", r.Version)
	for _, m := range r.Modules {
		fmt.Fprintf(&b, "%s %s: %s\n", m.Path, m.Version, m.License)
	}
	written := make(map[string]bool) // many modules have the same text
	for _, m := range r.Modules {
		for _, t := range m.Texts {
			if written[t.Content] {
				continue
			}
			written[t.Content] = true
			fmt.Fprintf(&b, "\n%s\n%s of %s\n\n%s\n", strings.Repeat("=", 80), t.Name,
				strings.Join(r.having(t.Content), ", "), strings.TrimRight(t.Content, "\n"))
		}
	}
	return b.String()
}

// having returns the modules that have a text.
func (r *release) having(content string) (paths []string) {
	for _, m := range r.Modules {
		if slices.ContainsFunc(m.Texts, func(t text) bool { return t.Content == content }) {
			paths = append(paths, m.Path)
		}
	}
	return paths
}
