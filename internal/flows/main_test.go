package flows

import (
	"os"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }
