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
	corev1 "k8s.io/api/core/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// containerd starts one with folders of its own on a host, and returns its socket. Its containers use the host's
// network.
func containerd(t *testing.T, host *testbed.Host) string {
	t.Helper()
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "containerd.sock"), filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n[grpc]\naddress = %q\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n",
		dir+"/root", dir+"/state", socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := host.Command(context.Background(), "containerd", "--config", config)
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
	socket := containerd(t, testbed.NewT(t, testbed.Config{}).Node)
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

// defaults are the capabilities that ctr gives a container and the chart does not ask for.
var defaults = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE"}

// TestImageServes: containerd runs the image by the name that the chart gives it, and by its digest, and it serves with
// the capabilities of the chart's container.
func TestImageServes(t *testing.T) {
	archive := filepath.Join(*images, "sluice-image.tar")
	if _, err := os.Stat(archive); err != nil {
		testbed.Missing(t, fmt.Sprintf("%v: run make image", err))
	}
	tb := testbed.NewT(t, testbed.Config{Pods: 1})
	if _, err := tb.Pods[0].WhoTCP(":8080"); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	err := testbed.WriteManifest(folder, "web.yaml", fmt.Sprintf("listen: tcp://%s:80\nendpoints: [%s:8080]\n",
		tb.Node.Addr4, tb.Pods[0].Addr4))
	if err != nil {
		t.Fatal(err)
	}
	socket := containerd(t, tb.Node)
	ctr := func(args ...string) *testbed.Cmd {
		return tb.Node.Command(t.Context(), "ctr", append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
	}
	awaitCtr := func() (bool, error) { return ctr("version").Run() == nil, nil }
	if err := testbed.Poll(t.Context(), patience, "containerd answers", awaitCtr); err != nil {
		t.Fatal(err)
	}
	out, err := ctr("image", "import", "--snapshotter", "native", "--digests", "--base-name", "localhost/sluice", archive).
		CombinedOutput()
	if err != nil {
		t.Fatalf("ctr image import: %v: %s", err, out)
	}
	_, digest, _ := strings.Cut(string(out), "localhost/sluice@")
	digest, _, _ = strings.Cut(digest, " ")
	for i, values := range []string{"capabilities.sysResource=false", "capabilities.sysResource=false,image.digest=" + digest} {
		c := chartContainer(t, values)
		args := []string{"run", "--rm", "--snapshotter", "native", "--net-host", "--read-only",
			"--mount", "type=bind,src=" + folder + ",dst=/manifests,options=rbind:ro"}
		for _, capability := range defaults {
			args = append(args, "--cap-drop", capability)
		}
		for _, capability := range c.SecurityContext.Capabilities.Add {
			args = append(args, "--cap-add", "CAP_"+string(capability))
		}
		id := fmt.Sprintf("serves-%d", i)
		run, err := ctr(append(args, c.Image, id, "/usr/local/bin/sluice", "--manifests=/manifests")...).Launch()
		if err != nil {
			t.Fatal(err)
		}
		err = testbed.Poll(t.Context(), patience, c.Image+" serves", func() (bool, error) {
			answer, _ := tb.Client.TryAsk("tcp", tb.Node.Addr4.String()+":80", time.Second)
			return answer == tb.Pods[0].Name, nil
		})
		if err != nil {
			t.Errorf("%v: %s", err, run.Log.String())
		}
		if out, err := ctr("task", "kill", "--signal", "SIGKILL", id).CombinedOutput(); err != nil {
			t.Errorf("ctr task kill: %v: %s", err, out)
		}
		_ = run.Wait(t.Context()) // it was killed
	}
}

// chartContainer returns the container of the chart's DaemonSet with these values.
func chartContainer(t *testing.T, values string) *corev1.Container {
	t.Helper()
	objects, err := helmed(t, "--set", values)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		var d appsv1.DaemonSet
		if err := json.Unmarshal(o, &d); err == nil && len(d.Spec.Template.Spec.Containers) > 0 {
			return &d.Spec.Template.Spec.Containers[0]
		}
	}
	t.Fatal("the chart has no DaemonSet")
	return nil
}
