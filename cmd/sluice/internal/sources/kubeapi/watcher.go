package kubeapi

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
)

const (
	// debounce is how long the first change waits for those that come with it: a
	// controller moves endpoints by writing one slice and then another.
	debounce = 5 * time.Millisecond

	// Between two sets of objects there is a rest of restShare times what the first
	// took to be worked on, from restMin to restMax. So a storm of events costs a part
	// of one core, however large the cluster, and no change waits for long.
	restShare = 3
	restMin   = 20 * time.Millisecond
	restMax   = time.Second

	// nodeWait is how long the first set waits for the own Node to exist. kube-proxy
	// gives up waiting after as long (pkg/proxy/node.go in 1.36).
	nodeWait = 30 * time.Second

	// A reflector that fails tries again after retryMin, then twice as long and so
	// on up to retryMax, each up to twice as long by chance. These are client-go's
	// own values, written here because an API server that comes back has to bear
	// them from every node.
	retryMin   = 800 * time.Millisecond
	retryMax   = 30 * time.Second
	retryReset = 2 * time.Minute
)

// Labels by which objects are asked for. The API module has no constant for the first.
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	notHeadless    = "!" + corev1.IsHeadlessService
)

// Config says what a Watcher watches. It is not to be changed after New.
type Config struct {
	Connection *rest.Config // how to reach the server
	NodeName   string       // of the own Node

	// ServiceProxyName is the value of the label service-proxy-name of the Services
	// to watch; empty: those without the label.
	ServiceProxyName string

	// SyncPeriod is how often everything is handed over though nothing has changed, as
	// the informers of kube-proxy do; 0: never.
	SyncPeriod time.Duration

	Log *zap.Logger

	// Trouble is called with what is logged while the API server cannot be read, and with "" when that is over. It may
	// be called by any goroutine, and must not block; nil: nothing is called.
	Trouble func(sentence string)
}

// Watcher reads what an API server holds. Make it by New.
type Watcher struct {
	Config
	troubles troubles

	services collection[*corev1.Service]
	slices   collection[*discoveryv1.EndpointSlice]
	nodes    collection[*corev1.Node]
	cidrs    cidrs
	kinds    []kind
	dirty    chan struct{} // one token: there is something new in a collection

	nodeWait time.Duration
	known    []*corev1.Node // the own Node as it was last
}

// kind is what one reflector is made of.
type kind struct {
	resource string
	client   rest.Interface
	example  runtime.Object
	store    cache.ReflectorStore
	limit    func(*metav1.ListOptions) // to the objects that matter
}

// New prepares a Watcher and asks the server nothing yet.
func New(c Config) (*Watcher, error) {
	clients, err := newClients(c.Connection)
	if err != nil {
		return nil, err
	}
	w := &Watcher{Config: c, dirty: make(chan struct{}, 1), nodeWait: nodeWait}
	w.troubles.log, w.troubles.report = c.Log, c.Trouble
	w.services = collection[*corev1.Service]{trim: kube.TrimService, changed: w.touch}
	w.slices = collection[*discoveryv1.EndpointSlice]{trim: kube.TrimSlice, changed: w.touch}
	w.nodes = collection[*corev1.Node]{trim: kube.TrimNode, changed: w.touch}
	w.cidrs.init(clients, w.touch)
	labels := func(selector string) func(*metav1.ListOptions) {
		return func(o *metav1.ListOptions) { o.LabelSelector = selector }
	}
	w.kinds = []kind{
		{"services", clients.core, &corev1.Service{}, &w.services, labels(proxySelector(c.ServiceProxyName))},
		// A Service's label service-proxy-name is copied to its slices by their
		// controller and not by others, so it cannot be asked for here.
		{"endpointslices", clients.discovery, &discoveryv1.EndpointSlice{}, &w.slices, labels(notHeadless)},
		{"nodes", clients.core, &corev1.Node{}, &w.nodes, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.NodeName).String()
		}},
	}
	return w, nil
}

func proxySelector(name string) string {
	if name == "" {
		return "!" + labelProxyName
	}
	return labelProxyName + "=" + name
}

// Run watches until ctx ends, and calls changed with everything there is: first when
// all kinds are complete, then whenever something is different, and every
// SyncPeriod. Changes that come
// soon after each other are handed over together. It calls from this goroutine; the
// objects, and the slices of them, are shared and must not be changed.
func (w *Watcher) Run(ctx context.Context, changed func(kube.Objects)) {
	w.Log.Info("reading Services from the API server", zap.String("server", Server(w.Connection)))
	var background sync.WaitGroup
	defer background.Wait()
	quiet := klog.NewContext(ctx, logr.New(sink{w.Log.Sugar(), zapcore.DebugLevel})) // troubles says it better
	for _, k := range w.kinds {
		background.Go(func() { w.reflector(k, listWatch(k)).RunWithContext(quiet) })
	}
	background.Go(func() { w.followCIDRs(quiet) })
	if !w.awaitFirst(ctx) {
		return
	}
	var again <-chan time.Time
	if w.SyncPeriod > 0 {
		ticker := time.NewTicker(w.SyncPeriod)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		if !pause(ctx, debounce) {
			return
		}
		select { // what has come meanwhile is read now
		case <-w.dirty:
		default:
		}
		start := time.Now()
		objects, _ := w.objects()
		changed(objects)
		if !pause(ctx, min(max(restShare*time.Since(start), restMin), restMax)) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.dirty:
		case <-again:
		}
	}
}

// listWatch asks for the objects of a kind.
func listWatch(k kind) *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(k.client.(cache.Getter), k.resource, metav1.NamespaceAll, k.limit)
}

func (w *Watcher) reflector(k kind, lw *cache.ListWatch) *cache.Reflector {
	return cache.NewReflectorWithOptions(w.troubles.watch(k.resource, (&history{resource: k.resource, lw: lw}).watch()),
		k.example, k.store, cache.ReflectorOptions{
			Name: k.resource,
			Backoff: &wait.Backoff{Duration: retryMin, Cap: retryMax, Factor: 2, Jitter: 1,
				Steps: int(math.Ceil(float64(retryMax) / float64(retryMin)))},
		})
}

// Contact returns when the API server has answered last, or sent something, and what keeps it from being read now;
// empty: nothing does. It may be called from anywhere.
func (w *Watcher) Contact() (last time.Time, trouble string) { return w.troubles.contact() }

// touch notes that there is something new. It never blocks.
func (w *Watcher) touch() {
	w.troubles.answered.Store(time.Now().UnixNano())
	select {
	case w.dirty <- struct{}{}:
	default: // a token lies there already, and the collections are read after it is taken
	}
}

// objects returns what there is, and whether every kind is complete.
func (w *Watcher) objects() (o kube.Objects, complete bool) {
	var haveServices, haveSlices bool
	o.Services, haveServices = w.services.all()
	o.Slices, haveSlices = w.slices.all()
	nodes, haveNodes := w.nodes.all()
	// A Node that is registered anew is gone for a moment. What it has said of this host
	// is still true.
	if nodes.Len() > 0 {
		w.known = slices.Collect(nodes.All())
	}
	o.Nodes = w.known
	cidrs, _ := w.cidrs.all()
	o.ServiceCIDRs = slices.Collect(cidrs.All())
	return o, haveServices && haveSlices && haveNodes
}

// awaitFirst waits until every kind is complete and the own Node exists, or has not
// come to exist for a while. It returns false if ctx ends.
func (w *Watcher) awaitFirst(ctx context.Context) bool {
	var giveUp <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.dirty:
		case <-giveUp:
			w.Log.Warn("serving without the Node object: no endpoint is local, no topology hints",
				zap.String("node", w.NodeName))
			return true
		}
		o, complete := w.objects()
		if complete && len(o.Nodes) > 0 {
			return true
		}
		if complete && giveUp == nil {
			giveUp = time.After(w.nodeWait)
			w.Log.Warn("Node object not found, waiting for it", zap.String("node", w.NodeName),
				zap.Duration("for", w.nodeWait),
				zap.String("hint", "set --hostname-override to a name that kubectl get nodes shows"))
		}
	}
}

// pause waits for d, or returns false if ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
