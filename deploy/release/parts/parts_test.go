package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestParts: NOTICE and both lists have every module of a program and its licence, and are the same each time.
func TestParts(t *testing.T) {
	read := func() *release {
		r := &release{Version: "0.1.0", Time: time.Unix(1700000000, 0).UTC(), Self: module{Path: "example.org/self", Version: "0.1.0"}}
		r.Modules = []module{
			{Path: "std", Version: "1.26", License: "BSD-3-Clause", Texts: []text{{"LICENSE", "of Go"}}},
			{Path: "example.org/a", Version: "v1.0.0", License: "MIT", Sum: "h1:AAAA", Texts: []text{{"LICENSE", "the same"}}},
			{Path: "example.org/b", Version: "v2.0.0", License: "Apache-2.0 AND MIT", Texts: []text{{"LICENSE", "the same"}}},
		}
		return r
	}
	notice := read().notice()
	if n := strings.Count(notice, "the same"); n != 1 || !strings.Contains(notice, "LICENSE of example.org/a, example.org/b") {
		t.Errorf("a text that two modules have is there %d times:\n%s", n, notice)
	}
	for name, list := range map[string]func(*release) object{"SPDX": (*release).spdx, "CycloneDX": (*release).cycloneDX} {
		first, err := json.Marshal(list(read()))
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := json.Marshal(list(read())); string(again) != string(first) {
			t.Errorf("%s is not the same twice", name)
		}
		for _, m := range read().Modules {
			if !strings.Contains(string(first), m.purl()) || !strings.Contains(string(first), m.License) {
				t.Errorf("%s has not %s with its licence", name, m.Path)
			}
		}
	}
}

// TestClassify: licences are known by their words, however the lines break.
func TestClassify(t *testing.T) {
	for words, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004":                                          "Apache-2.0",
		"Permission is hereby granted, free of\ncharge, to any person obtaining a copy":         "MIT",
		"Redistribution and use in source and binary forms, with":                               "BSD-2-Clause",
		"Redistribution and use in source and binary forms ... Neither the name of Google Inc.": "BSD-3-Clause",
		"All rights reserved": "",
	} {
		if got := strings.Join(classify(words), " "); got != want {
			t.Errorf("%q is %q, want %q", words, got, want)
		}
	}
}

// TestLicense: the licence of a module is in its folder, and one that is not known is an error.
func TestLicense(t *testing.T) {
	folder := t.TempDir()
	m := module{Path: "example.org/a", Version: "v1.0.0"}
	if err := m.license(folder); err == nil {
		t.Error("a module without a licence is no error")
	}
	for name, content := range map[string]string{"LICENSE.md": known[0].words, "NOTICE": "Copyright", "license.go": "package a"} {
		if err := os.WriteFile(folder+"/"+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.license(folder); err != nil || m.License != "Apache-2.0" {
		t.Errorf("%s, %v", m.License, err)
	}
	var files []string
	for _, file := range m.Texts {
		files = append(files, file.Name)
	}
	if want := []string{"LICENSE.md", "NOTICE"}; !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
}

// TestListsAreWhole: both lists name exactly the modules that "go version -m" finds in the program, with their versions, as
// a scanner would, and NOTICE has them, too.
func TestListsAreWhole(t *testing.T) {
	folder := t.TempDir()
	program := filepath.Join(folder, "sluice")
	if _, err := output("go", "build", "-buildvcs=false", "-o", program, "../../../cmd/sluice"); err != nil {
		t.Fatal(err)
	}
	found, err := output("go", "version", "-m", program)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(found) {
		if fields := strings.Fields(line); len(fields) >= 3 && fields[0] == "dep" {
			want = append(want, "pkg:golang/"+fields[1]+"@"+fields[2])
		}
	}
	if len(want) < 10 {
		t.Fatalf("go version -m finds %d modules: this tests nothing", len(want))
	}
	r := release{Version: "0.1.0"}
	if err := r.read([]string{program}); err != nil {
		t.Fatal(err)
	}
	want = append(want, "pkg:golang/std@"+r.Modules[0].Version, r.Self.purl())
	slices.Sort(want)
	purl := regexp.MustCompile(`pkg:golang/[^"]+`)
	for name, list := range map[string]object{"SPDX": r.spdx(), "CycloneDX": r.cycloneDX()} {
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		got := purl.FindAllString(string(text), -1)
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("%s has\n%q\nthe program\n%q", name, got, want)
		}
	}
	for _, m := range r.Modules {
		if !strings.Contains(r.notice(), m.Path+" "+m.Version+": ") {
			t.Errorf("NOTICE does not name %s", m.Path)
		}
	}
}
