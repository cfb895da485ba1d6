package kubeapi

import (
	"context"

	"go.uber.org/zap"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/kube"
)

// serviceCIDRs is the resource of ServiceCIDRs in its API group.
const serviceCIDRs = "servicecidrs"

// cidrs are the ServiceCIDRs of a server, which need not have any: v1 came with Kubernetes
// 1.33, and v1beta1 with 1.31. What is served does not wait for them.
type cidrs struct {
	collection[*networkingv1.ServiceCIDR]
	versions []kind // of the API, the newest first
}

func (c *cidrs) init(clients clients, changed func()) {
	c.collection = collection[*networkingv1.ServiceCIDR]{trim: kube.TrimServiceCIDR, older: fromBeta, changed: changed}
	everything := func(*metav1.ListOptions) {}
	c.versions = []kind{
		{serviceCIDRs, clients.networking, &networkingv1.ServiceCIDR{}, &c.collection, everything},
		{serviceCIDRs, clients.networkingBeta, &networkingv1beta1.ServiceCIDR{}, &c.collection, everything},
	}
}

// fromBeta is an object of v1beta1 as one of v1.
func fromBeta(obj any) (*networkingv1.ServiceCIDR, bool) {
	old, ok := obj.(*networkingv1beta1.ServiceCIDR)
	if !ok {
		return nil, false
	}
	spec := networkingv1.ServiceCIDRSpec{CIDRs: old.Spec.CIDRs}
	return &networkingv1.ServiceCIDR{ObjectMeta: old.ObjectMeta, Spec: spec}, true
}

// newest returns the newest version that the server serves. If it serves none, the error says that it is not found.
func (c *cidrs) newest(ctx context.Context) (k kind, err error) {
	for _, k = range c.versions {
		one := &metav1.ListOptions{Limit: 1}
		err = k.client.Get().Resource(k.resource).VersionedParams(one, metav1.ParameterCodec).Do(ctx).Error()
		if !apierrors.IsNotFound(err) {
			break
		}
	}
	return k, err
}

// followCIDRs reads ServiceCIDRs, in the newest version that the server serves, until ctx
// ends. When a server that has become another one serves that version no longer, it takes the newest
// one again. A server that serves none, or does not let us read them, is asked again later: the
// other objects are served all the same.
func (w *Watcher) followCIDRs(ctx context.Context) {
	for said := ""; ; {
		k, err := w.cidrs.newest(ctx)
		wait := retryMax
		switch missing := apierrors.IsNotFound(err); {
		case err == nil:
			said, wait = "", retryMin
			w.whileServed(ctx, k)
		case missing || apierrors.IsForbidden(err):
			if missing {
				_ = w.cidrs.Replace(nil, "") // it fails for objects of other types only
			}
			if err.Error() == said && missing {
				wait = remindEvery
			}
			if err.Error() != said {
				w.Log.Info("cannot read ServiceCIDRs: unused Service addresses are not refused", zap.Error(err))
			}
			said = err.Error()
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// whileServed reads a kind until the server says that it does not serve it.
func (w *Watcher) whileServed(ctx context.Context, k kind) {
	ctx, unserved := context.WithCancel(ctx)
	defer unserved()
	note := func(err error) {
		if apierrors.IsNotFound(err) {
			unserved()
		}
	}
	lw := listWatch(k)
	w.reflector(k, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := lw.ListWithContextFunc(ctx, o)
			note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := lw.WatchFuncWithContext(ctx, o)
			note(err)
			return events, err
		},
	}).RunWithContext(ctx)
}
