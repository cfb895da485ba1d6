package node

import (
	"fmt"
	"os"
	"strconv"
)

// SetOOMScoreAdj says how soon the kernel is to end this process when memory runs
// out (proc_pid_oom_score_adj(5)). A lower value than it has needs CAP_SYS_RESOURCE.
func SetOOMScoreAdj(score int) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(score)), 0); err != nil {
		return fmt.Errorf("set oom_score_adj to %d: %w", score, err)
	}
	return nil
}
