package command

import (
	"runtime/debug"
	"strings"
	"testing"
)

// TestBuild: what the linker has set counts; else what Go has recorded.
func TestBuild(t *testing.T) {
	record := func(version string, settings ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{Main: debug.Module{Version: version}}
		for _, s := range settings {
			key, value, _ := strings.Cut(s, "=")
			info.Settings = append(info.Settings, debug.BuildSetting{Key: key, Value: value})
		}
		return info
	}
	clone := record("v0.0.0-20261129-abc+dirty", "vcs=git", "vcs.modified=true", "vcs.revision=abc", "vcs.time=now")
	for _, test := range []struct {
		build Build
		info  *debug.BuildInfo
		want  string
	}{
		{Build{Version: "0.1.0", Commit: "abc"}, clone, "sluice 0.1.0 (revision abc, go"},
		{Build{}, clone, "sluice v0.0.0-20261129-abc+dirty (revision abc-dirty, go"},
		{Build{}, record("v0.1.0", "vcs.revision=abc", "vcs.modified=false"), "sluice v0.1.0 (revision abc, go"},
		{Build{}, record("v0.1.0"), "sluice v0.1.0 (revision unknown, go"}, // go install PACKAGE@v0.1.0
		{Build{}, record("(devel)"), "sluice unknown (revision unknown, go"},
	} {
		var out strings.Builder
		test.build.with(test.info).print(&out, "true")
		if !strings.HasPrefix(out.String(), test.want) {
			t.Errorf("got %q, want %q", out.String(), test.want)
		}
	}
}
