package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	benchload "github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	apiAddr    = "192.0.2.1:6443" // on the router, which every host reaches
	adminToken = "the-admin-of-the-tests"

	patience = testbed.Patience
)

// control is the control plane: etcd and kube-apiserver, on the router.
type control struct {
	*testbed.Testbed
	dir    string // data, certificates, logs
	ca     []byte // PEM
	admin  kubernetes.Interface
	etcd   *testbed.Process // nil when it does not run; killed and started again by tests
	server *testbed.Process
}

// plane is made by the first test that needs it and closed by TestMain: to start it
// takes seconds, and tests keep to namespaces of their own.
var plane struct {
	once sync.Once
	c    *control
	err  error
}

func TestMain(m *testing.M) {
	if status, ok := benchload.Main(os.Args[1:]); ok {
		os.Exit(status)
	}
	if err := testbed.Reexec(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		plane.once.Do(func() { plane.err = err })
	}
	code := m.Run()
	if plane.c != nil {
		plane.c.close()
	}
	os.Exit(code)
}

// newControl returns the control plane, or ends the test where it cannot be had.
func newControl(t testing.TB) *control {
	t.Helper()
	plane.once.Do(func() { plane.c, plane.err = startControl() })
	if errors.Is(plane.err, testbed.ErrUnsupported) || errors.Is(plane.err, exec.ErrNotFound) || errors.Is(plane.err, os.ErrNotExist) {
		testbed.Missing(t, fmt.Sprintf("%v: run make e2e, which gets everything", plane.err))
	}
	if plane.err != nil {
		t.Fatal(plane.err)
	}
	return plane.c
}

func startControl() (c *control, err error) {
	for _, program := range []string{*apiserver, *sluice} {
		if _, err := os.Stat(program); err != nil {
			return nil, err
		}
	}
	c = &control{}
	if c.Testbed, err = testbed.New(testbed.Config{RemotePods: 2}); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "sluice-e2e-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start the control plane: %w", err)
			c.close()
		}
	}()
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	config := &rest.Config{Host: "https://" + apiAddr, BearerToken: adminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca}, Dial: c.Router.Dial}
	config.WarningHandler = rest.NoWarnings{}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	if c.admin, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if err := errors.Join(c.startEtcd(), c.startServer()); err != nil {
		return nil, err
	}
	return c, errors.Join(c.addNodes(), c.grant())
}

func (c *control) path(name string) string { return filepath.Join(c.dir, name) }

// writeFiles makes the certificate and the keys, and says who the administrator is.
func (c *control) writeFiles() error {
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("192.0.2.1", []net.IP{net.ParseIP("192.0.2.1"), net.ParseIP("10.96.0.1")}, nil)
	if err != nil {
		return err
	}
	c.ca = certPEM // the chain has its authority
	accounts, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(c.path("tls.crt"), certPEM, 0o600),
		os.WriteFile(c.path("tls.key"), keyPEM, 0o600),
		os.WriteFile(c.path("accounts.key"), accounts, 0o600),
		os.WriteFile(c.path("tokens.csv"), []byte(adminToken+",admin,admin,system:masters\n"), 0o600),
		// What Sluice asks for is written down, with the answers.
		os.WriteFile(c.path("audit.yaml"), []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules:\n"+
			"- {level: Metadata, userGroups: [system:serviceaccounts]}\n- {level: None}\n"), 0o600),
	)
}

func (c *control) startEtcd() error {
	const url = "http://127.0.0.1:2379"
	const peers = "http://127.0.0.1:2380"
	return c.start(&c.etcd, "etcd", *etcd, "--data-dir", c.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
}

// startServer starts the API server and waits until it is ready.
func (c *control) startServer() error {
	err := c.start(&c.server, "apiserver", *apiserver, "--etcd-servers", "http://127.0.0.1:2379",
		"--bind-address", "0.0.0.0", "--advertise-address", "192.0.2.1", "--secure-port", "6443",
		"--tls-cert-file", c.path("tls.crt"), "--tls-private-key-file", c.path("tls.key"), "--cert-dir", c.path("certs"),
		"--service-cluster-ip-range", "10.96.0.0/16,2001:db8:96::/112",
		"--token-auth-file", c.path("tokens.csv"), "--authorization-mode", "RBAC",
		"--service-account-key-file", c.path("accounts.key"), "--service-account-signing-key-file", c.path("accounts.key"),
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--audit-policy-file", c.path("audit.yaml"), "--audit-log-path", c.path("audit.log"),
		"--allow-privileged") // as kubeadm has it
	if err != nil {
		return err
	}
	err = testbed.Poll(context.Background(), time.Minute, "kube-apiserver to be ready", func() (bool, error) {
		if c.server.Ended() {
			return false, errors.New("it has ended")
		}
		time.Sleep(50 * time.Millisecond) // readiness has no event, and to ask costs the server work
		err := c.admin.Discovery().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error()
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, c.tail("apiserver.log"))
	}
	return nil
}

// start starts a program on the router; its output goes to a file.
func (c *control) start(p **testbed.Process, name, program string, args ...string) error {
	log, err := os.OpenFile(c.path(name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	cmd := c.Router.Command(context.Background(), program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	*p, err = cmd.Launch()
	return err
}

// kill ends a program as a power failure does.
func kill(p *testbed.Process) {
	if p != nil {
		p.Stop(syscall.SIGKILL)
	}
}

func (c *control) close() {
	kill(c.server)
	kill(c.etcd)
	c.Testbed.Close()
	_ = os.RemoveAll(c.dir) // in a temporary folder
}

// tail returns the end of a log.
func (c *control) tail(name string) string {
	f, err := os.Open(c.path(name))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 4000
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd) // else all of it
	}
	text, _ := io.ReadAll(f)
	return string(text)
}

// addNodes writes the Node objects, as kubelets do.
func (c *control) addNodes() error {
	for _, n := range []struct {
		name, zone, ip string
		podCIDRs       []string
	}{
		{"node", "east", c.Node.Addr4.String(), []string{"10.244.1.0/24", "2001:db8:244:1::/64"}},
		{"remote-node", "west", c.RemoteNode.Addr4.String(), []string{"10.244.2.0/24", "2001:db8:244:2::/64"}},
	} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{corev1.LabelTopologyZone: n.zone, corev1.LabelHostname: n.name}},
			Spec:       corev1.NodeSpec{PodCIDR: n.podCIDRs[0], PodCIDRs: n.podCIDRs},
		}
		made, err := c.admin.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.ip}}
		if _, err := c.admin.CoreV1().Nodes().UpdateStatus(context.Background(), made, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
