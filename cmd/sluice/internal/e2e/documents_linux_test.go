package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

var (
	nodeBlock = regexp.MustCompile("(?ms)^ *```sh node\n(.*?)^ *```")
	yamlBlock = regexp.MustCompile("(?ms)^ *```yaml\n(.*?)^ *```")
)

// TestDocuments runs the blocks of the documents that are marked "sh node", in their order, on a node whose Sluice
// serves what they name: Service web of docs/start.md, with the endpoint that docs/operate.md drains.
func TestDocuments(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.Write("web.yaml", servedInStart(t))
	l.Write("more.yaml", testbed.SliceManifest("web", 2, 8080, "TCP", "10.244.1.7"))
	run := filepath.Join(t.TempDir(), "run")
	root, err := filepath.Abs("../../../..")
	testbed.Check(t, err)
	paths := strings.NewReplacer("/run/sluice/", run+"/", "/etc/sluice/manifests", l.Dir)
	dir, bin := t.TempDir(), t.TempDir()
	testbed.Check(t, os.Symlink(filepath.Join(root, "deploy"), filepath.Join(dir, "deploy")))
	program, err := filepath.Abs(os.Args[0])
	testbed.Check(t, err)
	testbed.WriteScript(t, filepath.Join(bin, "sudo"), "exec \"$@\"\n")
	testbed.WriteScript(t, filepath.Join(bin, "sluice"), fmt.Sprintf("export %s=%s\n"+
		"case \"$*\" in upgrade*|check*|*--manifests*) ;; *) set -- \"$@\" --api-socket %s/api.sock ;; esac\n"+
		"exec %s \"$@\"\n", lab.ProgramVar, l.Dir, run, program))
	l.Start("--handover-socket", filepath.Join(run, "handover.sock"))
	l.Eventually("the API is served", func() bool {
		_, err := os.Stat(filepath.Join(run, "api.sock"))
		return err == nil
	})
	t.Cleanup(func() { // what a block has upgraded to is no child of this test's
		for _, pid := range l.Processes() {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	})
	documents, err := filepath.Glob(root + "/docs/*.md")
	testbed.Check(t, err)
	reference, err := filepath.Glob(root + "/docs/reference/*.md")
	testbed.Check(t, err)
	ran := 0
	for _, file := range append(documents, reference...) {
		text, err := os.ReadFile(file)
		testbed.Check(t, err)
		for _, m := range nodeBlock.FindAllSubmatchIndex(text, -1) {
			ran++
			block := string(text[m[2]:m[3]])
			cmd := l.Node.Command(t.Context(), "bash", "-euo", "pipefail", "-c", paths.Replace(block))
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: %v\n%s\n%s", filepath.Base(file), strings.Count(string(text[:m[2]]), "\n")+1, err, block, out)
			}
		}
	}
	if ran < 30 {
		t.Errorf("%d blocks, want more", ran)
	}
}

// servedInStart returns the manifest of docs/start.md, its first block of YAML.
func servedInStart(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/start.md")
	testbed.Check(t, err)
	m := yamlBlock.FindSubmatch(text)
	if m == nil {
		t.Fatal("docs/start.md has no block of YAML")
	}
	return strings.ReplaceAll("\n"+string(m[1]), "\n   ", "\n")[1:]
}
