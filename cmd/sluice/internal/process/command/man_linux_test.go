package command

import (
	"bytes"
	"os/exec"
	"testing"
)

// TestManPage has groff, if it is installed, find nothing wrong with the manual page.
func TestManPage(t *testing.T) {
	var page bytes.Buffer
	if err := man(nil, &page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".SH OPTIONS\n", "\\-\\-manifests", ".SS sluice drain\n", ".SH SEE ALSO\n"} {
		if !bytes.Contains(page.Bytes(), []byte(want)) {
			t.Errorf("the page has no %q", want)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		t.Fatal("groff is missing: make deps installs it")
	}
	cmd := exec.CommandContext(t.Context(), "groff", "-man", "-ww", "-z", "-Tutf8")
	cmd.Stdin = &page
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}
