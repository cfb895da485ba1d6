package houserules

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDocumentsRun executes the command blocks that the documents mark with
// "sh run", each in its own copy of the repository as a reader would have it
// after cloning. "make demo" is not among them: make verify runs it.
func TestDocumentsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program anew; runs without -short")
	}
	r, err := newRepo(os.DirFS(root(t)))
	if err != nil {
		t.Fatal(err)
	}
	if !r.hasGo("cmd/sluice") {
		t.Skip("cmd/sluice has no Go code yet: there is nothing to build")
	}
	ran := 0
	for _, doc := range documents {
		for _, b := range r.blocks(doc) {
			if !b.run {
				continue
			}
			ran++
			t.Run(doc+" "+strings.SplitN(b.text, "\n", 2)[0], func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", b.text)
				cmd.Dir = copyTree(t)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%s:%d: %v\n%s\n%s", b.doc, b.line, err, b.text, out)
				}
			})
		}
	}
	if ran == 0 {
		t.Error("no document marks a block with sh run")
	}
}

// copyTree copies what git would commit into a new folder.
func copyTree(t *testing.T) string {
	t.Helper()
	from, to := root(t), t.TempDir()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = from
	out, err := list.Output()
	if err != nil {
		t.Skipf("git cannot list the files of this tree: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue // deleted and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		dst := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dst, content, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	return to
}
