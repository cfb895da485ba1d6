package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-lb/sluice/bench/testbed"
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

// TestImageIsFound: a node to which the archive of make image is imported has the image under the name that each overlay
// gives it, as a kubelet asks for it.
func TestImageIsFound(t *testing.T) {
	if _, err := os.Stat(*image); err != nil {
		testbed.Missing(t, fmt.Sprintf("%v: run make image", err))
	}
	socket := containerd(t)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	images := runtime.NewImageServiceClient(conn)
	present := func(name string) (bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		answer, err := images.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: name}}, grpc.WaitForReady(true))
		return answer.GetImage() != nil, err
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
	if len(names) != 1 {
		t.Errorf("images %v, want one", names)
	}
	for name := range names {
		if there, err := present(name); there || err != nil {
			t.Fatalf("%s is there before it is imported, or %v", name, err)
		}
	}
	out, err := exec.Command("ctr", "--address", socket, "--namespace", "k8s.io", "image", "import", "--snapshotter", "native", *image).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr image import: %v: %s", err, out)
	}
	for name := range names {
		// The CRI learns of what others import by an event that only it sees.
		err := testbed.Poll(t.Context(), patience, name+" to be there", func() (bool, error) {
			time.Sleep(10 * time.Millisecond) // not to ask all the time
			return present(name)
		})
		if err != nil {
			t.Errorf("%v; ctr says %s", err, out)
		}
	}
}
