package testbed

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestInventory(t *testing.T) {
	var before inventory
	var report string
	Eventually(t, "one more of each is reported", func() bool {
		before = leakable(t) // perhaps with what an earlier test has left, which then ends: so once more
		stop := make(chan struct{})
		defer close(stop)
		started := make(chan struct{})
		go func() { close(started); <-stop }()
		<-started
		f := must[*os.File](t)(os.Open("/dev/null"))
		defer f.Close()
		report = before.compare(leakable(t))
		return strings.Contains(report, "leaked 1 goroutines") && strings.Contains(report, "leaked 1 descriptors")
	})
	for _, want := range []string{"TestInventory.func", "/dev/null"} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in report:\n%s", want, report)
		}
	}
	Eventually(t, "nothing is leaked", func() bool { return before.compare(leakable(t)) == "" })
}

func TestNoLeaksWaits(t *testing.T) {
	stop := make(chan struct{})
	t.Run("ends late", func(t *testing.T) {
		NoLeaks(t)
		go func() { <-stop }()
		t.Cleanup(func() { close(stop) }) // runs before the check
	})
}

// The program hold opens a file, fills 64 MiB, says so, and waits for the end of
// its standard input.
func init() {
	programs["hold"] = func([]string) int {
		f, err := os.Open("/etc/passwd")
		if err != nil {
			panic(err)
		}
		defer f.Close()
		memory := make([]byte, 64<<20)
		for i := range memory {
			memory[i] = byte(i)
		}
		os.Stdout.WriteString("ready\n")
		os.Stdin.Read(memory)
		return 0
	}
}

func TestMeasureProcess(t *testing.T) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), programVar+"=hold")
	stdin := must[io.WriteCloser](t)(c.StdinPipe())
	stdout := must[io.ReadCloser](t)(c.StdoutPipe())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	files := must[[]string](t)(OpenFiles(c.Process.Pid))
	if !slices.Contains(files, "/etc/passwd") || len(files) < 4 {
		t.Errorf("descriptors: %v", files)
	}
	if rss := must[int64](t)(ResidentBytes(c.Process.Pid)); rss < 64<<20 || rss > 256<<20 {
		t.Errorf("a process that fills 64 MiB has %d bytes", rss)
	}
	stdin.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := OpenFiles(c.Process.Pid); err == nil {
		t.Error("OpenFiles of a dead process did not fail")
	}
	if _, err := ResidentBytes(c.Process.Pid); err == nil {
		t.Error("ResidentBytes of a dead process did not fail")
	}
}
