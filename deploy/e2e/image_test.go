package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// containerd starts one with folders of its own, and returns its socket.
func containerd(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "containerd.sock"), filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n",
		dir+"/root", dir+"/state", socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command("containerd", "--config", config)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		testbed.Missing(t, fmt.Sprintf("%v: run make e2e, which gets everything", err))
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it has ended, or Wait says why
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("containerd's log:\n%s", log.String())
		}
	})
	return socket
}

// TestImageIsFound: a node to which the archives of make image are imported has the images under the names that the
// overlays give them, as a kubelet asks for them, and each for the architecture of the node.
func TestImageIsFound(t *testing.T) {
	archives, err := filepath.Glob(filepath.Join(*images, "sluice-image*.tar"))
	if err != nil || len(archives) != 2 {
		testbed.Missing(t, fmt.Sprintf("%q in %s, %v: run make image image-iptables", archives, *images, err))
	}
	socket := containerd(t)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	images := runtime.NewImageServiceClient(conn)
	status := func(name string) (*runtime.ImageStatusResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		ask := &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: name}, Verbose: true}
		return images.ImageStatus(ctx, ask, grpc.WaitForReady(true))
	}
	names := make(map[string]bool)
	for _, overlay := range overlays {
		for _, o := range render(t, "../"+overlay) {
			var d appsv1.DaemonSet
			if err := json.Unmarshal(o, &d); err != nil {
				t.Fatal(err)
			}
			for _, c := range append(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers...) {
				names[c.Image] = true
			}
		}
	}
	if len(names) != len(archives) {
		t.Errorf("images %v, want those of %q", names, archives)
	}
	for name := range names {
		if answer, err := status(name); answer.GetImage() != nil || err != nil {
			t.Fatalf("%s is there before it is imported, or %v", name, err)
		}
	}
	for _, archive := range archives {
		cmd := exec.Command("ctr", "--address", socket, "--namespace", "k8s.io", "image", "import", "--snapshotter", "native", archive)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("ctr image import: %v: %s", err, out)
		}
	}
	for name := range names {
		// The CRI learns of what others import by an event that only it sees.
		var answer *runtime.ImageStatusResponse
		err := testbed.Poll(t.Context(), patience, name+" to be there", func() (there bool, err error) {
			time.Sleep(10 * time.Millisecond) // not to ask all the time
			answer, err = status(name)
			return answer.GetImage() != nil, err
		})
		if err != nil {
			t.Error(err)
		} else if info := answer.Info["info"]; !strings.Contains(info, fmt.Sprintf(`"architecture":%q`, goruntime.GOARCH)) {
			t.Errorf("%s on a node of %s is %s", name, goruntime.GOARCH, info)
		}
	}
}
