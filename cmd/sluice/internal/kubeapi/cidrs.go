package kubeapi

import (
	"context"

	"go.uber.org/zap"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/kube"
)

// serviceCIDRs is the resource of ServiceCIDRs in its API group.
const serviceCIDRs = "servicecidrs"

// cidrs are the ServiceCIDRs of a server, which need not have any: v1 came with Kubernetes
// 1.33, and v1beta1 with 1.31. What is served does not wait for them.
type cidrs struct {
	v1   collection[*networkingv1.ServiceCIDR]
	beta collection[*networkingv1beta1.ServiceCIDR]

	clients clients
}

func newCIDRs(c clients, changed func()) cidrs {
	return cidrs{clients: c,
		v1: collection[*networkingv1.ServiceCIDR]{trim: kube.TrimServiceCIDR, changed: changed},
		beta: collection[*networkingv1beta1.ServiceCIDR]{changed: changed,
			trim: func(c *networkingv1beta1.ServiceCIDR) *networkingv1beta1.ServiceCIDR { return c }}}
}

// all returns the ServiceCIDRs that there are.
func (c *cidrs) all() []*networkingv1.ServiceCIDR {
	out, _ := c.v1.all()
	old, _ := c.beta.all()
	for _, o := range old {
		out = append(out, kube.TrimServiceCIDR(&networkingv1.ServiceCIDR{ObjectMeta: o.ObjectMeta,
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: o.Spec.CIDRs}}))
	}
	return out
}

// followCIDRs reads ServiceCIDRs, in the newest version that the server serves, until ctx
// ends. A server that serves none, or does not let us read them, is asked again later: the
// other objects are served all the same.
func (w *Watcher) followCIDRs(ctx context.Context) {
	c, everything := &w.cidrs, func(*metav1.ListOptions) {}
	kinds := []kind{
		{serviceCIDRs, c.clients.networking, &networkingv1.ServiceCIDR{}, &c.v1, everything},
		{serviceCIDRs, c.clients.networkingBeta, &networkingv1beta1.ServiceCIDR{}, &c.beta, everything},
	}
	for said := ""; ; {
		var err error
		for _, k := range kinds {
			one := &metav1.ListOptions{Limit: 1}
			err = k.client.Get().Resource(k.resource).VersionedParams(one, scheme.ParameterCodec).Do(ctx).Error()
			if err == nil {
				w.reflector(k).RunWithContext(ctx)
				return
			}
			if !apierrors.IsNotFound(err) {
				break
			}
		}
		wait := retryMax
		if missing := apierrors.IsNotFound(err); missing || apierrors.IsForbidden(err) {
			if err.Error() != said {
				w.Log.Info("there are no ServiceCIDRs to read: packets to addresses that no Service has are left alone",
					zap.Error(err))
			}
			if said = err.Error(); missing {
				wait = remindEvery
			}
		}
		if !pause(ctx, wait) {
			return
		}
	}
}
