package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// Addresses in deploy/examples.
const (
	webVIP    = "10.96.0.80"
	stickyVIP = "10.96.0.81"
	dnsVIP    = "10.96.0.10"
)

// lab is what the demo runs on: hosts, servers in the pods, and Sluice on the node.
type lab struct {
	*testbed.Testbed
	web       []*testbed.Host // pods with a web server, the first three
	dns       []*testbed.Host // pods with dnsmasq, the others
	servers   []*http.Server  // of web, by index; later ones replace any of them
	serving   sync.WaitGroup  // the goroutines of servers
	dnsmasqs  []*testbed.Process
	dir       string // of everything below
	manifests string
	program   string
	flags     []string         // of Sluice
	sluice    *testbed.Process // nil before it is started
	replaced  *testbed.Process // the one that sluice took over from; nil before the upgrade
	before    string           // the node's kernel state before Sluice
}

func newLab(ctx context.Context, program, examples string) (l *lab, err error) {
	l = &lab{}
	if l.program, err = filepath.Abs(program); err != nil {
		return nil, fmt.Errorf("find sluice: %w", err)
	}
	if l.Testbed, err = testbed.New(testbed.Config{Pods: 6}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	l.web, l.dns = l.Pods[:3], l.Pods[3:]
	if l.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	l.manifests = filepath.Join(l.dir, "manifests")
	if err := os.CopyFS(l.manifests, os.DirFS(examples)); err != nil {
		return nil, fmt.Errorf("copy manifests: %w", err)
	}
	for _, pod := range l.web {
		if err := l.startWeb(ctx, pod); err != nil {
			return nil, err
		}
	}
	for _, pod := range l.dns {
		if err := l.startDNS(ctx, pod); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// close ends all that the lab has started, in whatever state it is.
func (l *lab) close() error {
	var errs []error
	for _, p := range []*testbed.Process{l.replaced, l.sluice} {
		if p != nil {
			p.Stop(syscall.SIGKILL)
		}
	}
	for _, s := range l.servers {
		errs = append(errs, s.Close())
	}
	l.serving.Wait()
	for _, c := range l.dnsmasqs {
		c.Stop(syscall.SIGKILL)
	}
	l.Close()
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// printLog shows the end of Sluice's log.
func (l *lab) printLog(w io.Writer) {
	if l.sluice == nil {
		return
	}
	lines := strings.SplitAfter(l.sluice.Log.String(), "\n")
	fmt.Fprintf(w, "\nThe last lines that sluice wrote:\n%s", strings.Join(lines[max(0, len(lines)-20):], ""))
}

// startWeb starts a web server in a pod, which answers with the pod's name.
func (l *lab) startWeb(ctx context.Context, pod *testbed.Host) error {
	ln, err := pod.Listen(ctx, "tcp", ":8080")
	if err != nil {
		return fmt.Errorf("start a web server: %w", err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, pod.Name) // an error is the client's to report
	})}
	l.servers = append(l.servers, s)
	l.serving.Go(func() { s.Serve(ln) }) // until s.Close, which closes ln
	return nil
}

// startDNS starts dnsmasq in a pod, with a record that names the pod, and waits
// until it serves. Without --no-daemon it would change to a user that there may not be here.
func (l *lab) startDNS(ctx context.Context, pod *testbed.Host) error {
	p, err := pod.Command(ctx, "dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
		"--pid-file", "--txt-record=who.demo.example,"+pod.Name).Launch()
	if err != nil {
		return err
	}
	l.dnsmasqs = append(l.dnsmasqs, p)
	return testbed.Poll(ctx, 10*time.Second, "dnsmasq in "+pod.Name, func() (bool, error) {
		conn, err := pod.Dial(ctx, "tcp", "127.0.0.1:53")
		if err != nil {
			return false, nil
		}
		return true, conn.Close()
	})
}

// scaleWeb rewrites the web Service's EndpointSlice to have just these pods.
func (l *lab) scaleWeb(pods []*testbed.Host) error {
	var addrs []string
	for _, p := range pods {
		addrs = append(addrs, p.Addr4.String())
	}
	slice := testbed.SliceManifest("web", 1, 8080, "TCP", addrs...)
	slice = strings.Replace(slice, "- port:", "- name: http\n  port:", 1)
	if err := testbed.WriteManifest(l.manifests, "web-endpoints.yaml", slice); err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	return nil
}

func names(hosts []*testbed.Host) []string {
	var ns []string
	for _, h := range hosts {
		ns = append(ns, h.Name)
	}
	return ns
}
