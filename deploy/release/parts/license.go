package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// names are the files of a module that its licence wants to be passed on.
var names = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([-.].*)?$`)

// known are sentences of licences, and what SPDX calls those.
var known = []struct{ words, name string }{
	{"Apache License Version 2.0", "Apache-2.0"},
	{"Apache License, Version 2.0", "Apache-2.0"},
	{"Mozilla Public License Version 2.0", "MPL-2.0"},
	{"Permission to use, copy, modify, and/or distribute this software", "ISC"},
	{"Permission to use, copy, modify, and distribute this software", "ISC"},
	{"Permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"},
	{"Neither the name of", "BSD-3-Clause"},
	{"names of its contributors may not be used to endorse", "BSD-3-Clause"},
	{"Redistribution and use in source and binary forms", "BSD-2-Clause"},
}

// folders returns where Go and the modules of this one are.
func folders() (map[string]string, error) {
	root, err := output("go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	list, err := output("go", "list", "-m", "-json", "all")
	if err != nil {
		return nil, err
	}
	found := map[string]string{"std": strings.TrimSpace(root)}
	for decoder := json.NewDecoder(strings.NewReader(list)); ; {
		var m struct{ Path, Dir string }
		switch err := decoder.Decode(&m); {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, fmt.Errorf("read the list of modules: %w", err)
		}
		found[m.Path] = m.Dir
	}
}

// output returns what a program writes.
func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}

// license reads the licences in the folder of a module.
func (m *module) license(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("find the licence of %s: %w; run go mod download", m.Path, err)
	}
	var licenses []string
	for _, entry := range entries {
		if !names.MatchString(entry.Name()) || entry.IsDir() || strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return fmt.Errorf("read the licence of %s: %w", m.Path, err)
		}
		m.Texts = append(m.Texts, text{entry.Name(), string(content)})
		licenses = append(licenses, classify(string(content))...)
	}
	if len(licenses) == 0 {
		return fmt.Errorf("unknown licence of %s %s in %s: add a sentence of it to license.go", m.Path, m.Version,
			folder)
	}
	slices.Sort(licenses)
	m.License = strings.Join(slices.Compact(licenses), " AND ")
	return nil
}

// classify returns what SPDX calls the licences in a text.
func classify(content string) (licenses []string) {
	content = strings.Join(strings.Fields(content), " ")
	for _, k := range known {
		if strings.Contains(content, k.words) {
			licenses = append(licenses, k.name)
		}
	}
	// The licence with two conditions is the beginning of the one with three.
	if slices.Contains(licenses, "BSD-3-Clause") {
		licenses = slices.DeleteFunc(licenses, func(name string) bool { return name == "BSD-2-Clause" })
	}
	return licenses
}
