package kubeapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const patience = 20 * time.Second

// refused returns the URL of a port where nobody listens.
func refused(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	check(t, ln.Close())
	return "https://" + ln.Addr().String()
}

// start runs a Watcher of node "here" whose server is away, so that a test can feed
// its collections. The channel has each set of objects.
func start(t *testing.T, change func(*Watcher)) (*Watcher, <-chan kube.Objects, *observer.ObservedLogs) {
	t.Helper()
	return startAt(t, &rest.Config{Host: refused(t)}, change)
}

func startAt(t *testing.T, server *rest.Config, change func(*Watcher)) (
	*Watcher, <-chan kube.Objects, *observer.ObservedLogs,
) {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	w, err := New(Config{Connection: server, NodeName: "here", Log: zap.New(core)})
	check(t, err)
	if change != nil {
		change(w)
	}
	sets := make(chan kube.Objects)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		w.Run(ctx, func(o kube.Objects) {
			select {
			case sets <- o:
			case <-ctx.Done():
			}
		})
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return w, sets, logs
}

func next(t *testing.T, sets <-chan kube.Objects) kube.Objects {
	t.Helper()
	select {
	case o := <-sets:
		return o
	case <-time.After(patience):
		t.Fatal("no set of objects comes")
		return kube.Objects{}
	}
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func slice(i, version int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("s-%04d", i)},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.1.%d.%d", version, i%250)}}}}
}

// TestFirstWaitsForAll holds that nothing is handed over before every kind is there.
func TestFirstWaitsForAll(t *testing.T) {
	w, sets, _ := start(t, nil)
	none := func(why string) {
		t.Helper()
		select {
		case o := <-sets:
			t.Fatalf("%s: got %d objects", why, o.Len())
		case <-time.After(4 * debounce): // that nothing comes has no event
		}
	}
	check(t, w.services.Replace([]any{service("a", "10.0.0.1", "1")}, "1"))
	none("only Services are known")
	check(t, w.nodes.Replace([]any{node("here")}, "1"))
	none("EndpointSlices are not known")
	check(t, w.slices.Replace([]any{slice(1, 1)}, "1"))
	if o := next(t, sets); o.Services.Len() != 1 || o.Slices.Len() != 1 || len(o.Nodes) != 1 {
		t.Errorf("got %+v, want one of each", o)
	}
}

// TestNodeIsMissing holds that a wrong name is said, with what to do, and that Services
// are served in the end.
func TestNodeIsMissing(t *testing.T) {
	w, sets, logs := start(t, func(w *Watcher) { w.nodeWait = 50 * time.Millisecond })
	check(t, w.services.Replace([]any{service("a", "10.0.0.1", "1")}, "1"))
	check(t, w.slices.Replace(nil, "1"))
	check(t, w.nodes.Replace(nil, "1"))
	if o := next(t, sets); o.Services.Len() != 1 || len(o.Nodes) != 0 {
		t.Errorf("got %+v, want the Service without a Node", o)
	}
	if warned := logs.FilterMessageSnippet("Node object not found").Len(); warned != 1 {
		t.Errorf("warned %d times of the name, want once: %v", warned, logs.All())
	}
	check(t, w.nodes.Add(node("here")))
	if o := next(t, sets); len(o.Nodes) != 1 {
		t.Errorf("got %+v, want the Node that exists now", o)
	}
	check(t, w.nodes.Delete(node("here")))
	if o := next(t, sets); len(o.Nodes) != 1 {
		t.Errorf("got %+v, want the Node as it was last", o)
	}
}

// TestBurst holds that a thousand events come to few sets of objects, the last of
// which has them all, and that a change in its own is not held up by others.
func TestBurst(t *testing.T) {
	w, sets, _ := start(t, nil)
	const n = 1000
	var all []any
	for i := range n {
		all = append(all, slice(i, 0))
	}
	check(t, w.services.Replace(nil, "1"))
	check(t, w.slices.Replace(all, "1"))
	check(t, w.nodes.Replace([]any{node("here")}, "1"))
	next(t, sets)

	go func() {
		for version := range 2 {
			for i := range n {
				if err := w.slices.Update(slice(i, version+1)); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for got := 1; ; got++ {
		o := next(t, sets)
		all := slices.Collect(o.Slices.All())
		if strings.HasPrefix(all[n-1].Endpoints[0].Addresses[0], "10.1.2.") {
			t.Logf("%d events came in %d sets", 2*n, got)
			return
		}
		if got > n/10 {
			t.Fatalf("%d sets of objects for %d events so far", got, 2*n)
		}
	}
}

// TestSyncPeriod holds that everything is handed over again, in the same objects, though
// nothing has changed.
func TestSyncPeriod(t *testing.T) {
	w, sets, _ := start(t, func(w *Watcher) { w.SyncPeriod = 20 * time.Millisecond })
	check(t, w.services.Replace([]any{service("a", "10.0.0.1", "1")}, "1"))
	check(t, w.slices.Replace(nil, "1"))
	check(t, w.nodes.Replace([]any{node("here")}, "1"))
	if first, again := next(t, sets), next(t, sets); !lists.Equal(first.Services, again.Services) {
		t.Error("the objects are others, though they say the same")
	}
}

// asked counts requests by their paths.
type asked struct {
	mu sync.Mutex
	by map[string]int
}

func (a *asked) add(path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.by == nil {
		a.by = make(map[string]int)
	}
	a.by[path]++
}

// twice returns how many paths were asked for at least twice.
func (a *asked) twice() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, times := range a.by {
		if times > 1 {
			n++
		}
	}
	return n
}

// roundTrip is a function as a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestUnreachable holds that a server that is away is told of once, though every kind
// fails and tries again.
func TestUnreachable(t *testing.T) {
	var all asked
	server := &rest.Config{Host: refused(t), WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			all.add(r.URL.Path)
			return next.RoundTrip(r)
		})
	}}
	_, _, logs := startAt(t, server, nil)
	testbed.Within(t, patience, "three kinds are asked for again", func() bool { return all.twice() == 3 })
	told := logs.FilterLevelExact(zapcore.ErrorLevel)
	if told.Len() != 1 || !strings.Contains(told.All()[0].Message, "cannot be reached") {
		t.Errorf("logged %v, want one sentence", logs.All())
	}
}
