package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// labPrograms are what every measurement runs, whatever the workload.
var labPrograms = []string{"ip", "iptables", "iptables-restore", "conntrack"}

// Peers that come from a newer distribution than the machine's.
const (
	haproxyName = "haproxy"
	nginxName   = "nginx"
)

// usePeers makes the programs of "make peers", which are beside this one, come before those of the machine. Programs of
// the system are found for every user.
func usePeers() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	list := []string{filepath.Join(filepath.Dir(self), "peers/bin"), os.Getenv("PATH"), "/usr/sbin", "/sbin"}
	return os.Setenv("PATH", strings.Join(list, string(filepath.ListSeparator)))
}

// bringer returns the make target that installs a program.
func bringer(program string) string {
	if program == haproxyName || program == nginxName {
		return "make peers"
	}
	return "make deps"
}

// notInstalled returns an error that names the programs that are not installed, and what brings them, in one line.
func notInstalled(programs []string) error {
	var missing, remedies []string
	for _, name := range programs {
		_, err := exec.LookPath(name)
		what := name
		if err == nil && name == nginxName && !hasStream() {
			what, err = "the stream module of nginx", exec.ErrNotFound
		}
		if err == nil || slices.Contains(missing, what) {
			continue
		}
		missing = append(missing, what)
		if r := bringer(name); !slices.Contains(remedies, r) {
			remedies = append(remedies, r)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("not installed: %s; run: %s", strings.Join(missing, ", "), strings.Join(remedies, " && "))
}

// findSluice returns the absolute path of a build of Sluice.
func findSluice(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = exec.LookPath(path)
	}
	if err != nil {
		return "", fmt.Errorf("find Sluice: %w; run: make build", err)
	}
	return path, nil
}

// hasStream reports whether nginx proxies TCP and UDP.
func hasStream() bool {
	if streamModule() != "" {
		return true
	}
	out, err := exec.Command(nginxName, "-V").CombinedOutput()
	return err == nil && slices.Contains(strings.Fields(string(out)), "--with-stream")
}

// streamModule returns where nginx's stream module is, if it is not built in.
func streamModule() string {
	nginx, err := exec.LookPath(nginxName)
	if err != nil {
		return ""
	}
	root := filepath.Join(filepath.Dir(nginx), "../root") // as "make peers" unpacks it
	if _, err := os.Stat(root); err != nil {
		root = "/"
	}
	paths, err := filepath.Glob(filepath.Join(root, "usr/lib*/nginx/modules/ngx_stream_module.so"))
	if err != nil || len(paths) == 0 {
		return ""
	}
	return slices.Max(paths)
}
