package e2e

import (
	"os"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
