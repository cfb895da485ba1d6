package reference

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

const root = "../../../.."

// TestPages: every page is what its template makes of the program's tables. "make docs" writes the pages.
func TestPages(t *testing.T) {
	pages, err := Pages(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range pages {
		testbed.Golden(t, filepath.Join(root, name), text)
	}
	found, err := filepath.Glob(root + "/docs/reference/*.md")
	testbed.Check(t, err)
	for _, file := range found {
		if pages["docs/reference/"+filepath.Base(file)] == "" {
			t.Errorf("%s has no template", file)
		}
	}
}
