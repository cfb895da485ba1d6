package kubeapi

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// remindEvery is how often a trouble that lasts is logged again.
const remindEvery = 10 * time.Minute

// troubles reports what keeps the API server from being read: once, again
// while it lasts, and when it is over. The reflectors try again by themselves.
type troubles struct {
	log    *zap.Logger
	report func(sentence string) // see Config.Trouble

	answered atomic.Int64 // when the server did last, in ns since 1970; 0: never

	mu     sync.Mutex           // guards the following
	open   map[string]string    // what is wrong with a resource now
	logged map[string]time.Time // when that was said, since all was well
}

// watch returns lw with its calls observed.
func (t *troubles) watch(resource string, lw *cache.ListWatch) *cache.ListWatch {
	list, open := lw.ListWithContextFunc, lw.WatchFuncWithContext
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			got, err := list(ctx, options)
			t.note(ctx, "list", resource, err)
			return got, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			got, err := open(ctx, options)
			if err != nil && options.SendInitialEvents != nil {
				// A server before Kubernetes 1.32 does not know how to stream a list;
				// the reflector lists instead, and that call reports other troubles
				// but those of a server that does not answer, for which it may take long.
				if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
					t.note(ctx, "watch", resource, err)
				}
				// Those after which it would stream again it waits out in a way that
				// the end of the program does not interrupt: it is not shown them.
				if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) ||
					apierrors.IsInternalError(err) {
					err = errors.New(err.Error())
				}
				return got, err
			}
			t.note(ctx, "watch", resource, err)
			return got, err
		},
	}
}

// note takes down how a call ended.
func (t *troubles) note(ctx context.Context, verb, resource string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // the program ends; or the reflector lists again, as it should
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.answered.Store(time.Now().UnixNano())
		delete(t.open, resource)
		if len(t.open) == 0 && len(t.logged) > 0 {
			t.log.Info("the API server answers again")
			t.pass("")
			clear(t.logged)
		}
		return
	}
	if t.open == nil {
		t.open, t.logged = make(map[string]string), make(map[string]time.Time)
	}
	sentence := describe(verb, resource, err) // a server that is away is away for all, in the same words
	again := t.open[resource] == sentence
	t.open[resource] = sentence
	// A server that has just started forbids everything until it has read its roles.
	if time.Since(t.logged[sentence]) >= remindEvery && (again || !apierrors.IsForbidden(err)) {
		t.logged[sentence] = time.Now()
		t.log.Error(sentence, zap.Error(err))
		t.pass(sentence)
	}
}

// pass calls report.
func (t *troubles) pass(sentence string) {
	if t.report != nil {
		t.report(sentence)
	}
}

// contact is Watcher.Contact.
func (t *troubles) contact() (last time.Time, trouble string) {
	if ns := t.answered.Load(); ns != 0 {
		last = time.Unix(0, ns)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, resource := range slices.Sorted(maps.Keys(t.open)) {
		return last, t.open[resource]
	}
	return last, ""
}

// describe says what is wrong and what to do about it. The same trouble has the same
// words each time.
func describe(verb, resource string, err error) string {
	var invalid *x509.CertificateInvalidError
	var name *net.DNSError
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the API server does not let us %s %s: bind the ClusterRole of deploy/base/rbac.yaml to "+
			"our account",
			verb, resource)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the API server does not know %s: Kubernetes 1.21 or later is needed", resource)
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept our credentials: " +
			"renew the token or the certificate that the kubeconfig or the service account gives us"
	case errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.HostnameError)),
		errors.As(err, &invalid):
		return "the certificate of the API server cannot be trusted: " +
			"give the kubeconfig the cluster's certificate authority and an address that the certificate names"
	case errors.As(err, &name):
		return fmt.Sprintf("the name %q of the API server cannot be resolved: Services stay as they were last; "+
			"give --master, or the server in the kubeconfig, an address or a name that this node can resolve",
			name.Name)
	case wantsTLS(err):
		return "the API server wants HTTPS: give --master, or the server in the kubeconfig, a URL that begins with " +
			"https://"
	case unreachable(err):
		return "the API server cannot be reached or is not ready: Services stay as they were last; " +
			"check --master or the server in the kubeconfig if that persists"
	}
	return fmt.Sprintf("the API server cannot %s %s", verb, resource)
}

// wantsTLS reports whether a server of HTTPS was asked by HTTP, which Go's answer in
// words (net/http).
func wantsTLS(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return strings.Contains(c.Message, "HTTP request to an HTTPS server")
	})
}

// unreachable reports whether there was no answer at all.
func unreachable(err error) bool {
	var status apierrors.APIStatus
	var network net.Error
	var request *url.Error
	return !errors.As(err, &status) && (errors.As(err, &request) || errors.As(err, &network)) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
}
