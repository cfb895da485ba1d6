package kubeapi

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// history has a reflector begin anew when the API server has gone back to an older
// state, as it does when etcd is restored from a backup. A watch that goes on from a
// version that is yet to come is not refused: it is silent about all that happens
// until that version (kube-apiserver 1.36), and what was undone is never reported. A list
// from such a version is refused only after three seconds, and client-go asks ten times.
type history struct {
	resource string
	lw       *cache.ListWatch
	listed   bool // just now, so that a watch can follow; the reflector makes one call after the other
}

func (h *history) watch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			back, err := h.wentBack(ctx, options.ResourceVersion)
			if err != nil {
				return nil, err
			}
			if back {
				options.ResourceVersion = ""
			}
			list, err := h.lw.ListWithContextFunc(ctx, options)
			h.listed = err == nil
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if h.listed {
				h.listed = false
				return h.lw.WatchFuncWithContext(ctx, options)
			}
			back, err := h.wentBack(ctx, options.ResourceVersion)
			switch {
			case err != nil:
				return nil, err
			case back && options.SendInitialEvents == nil:
				return nil, apierrors.NewResourceExpired(h.resource +
					": the API server has gone back to an older state") // list
			case back:
				options.ResourceVersion = ""
			}
			return h.lw.WatchFuncWithContext(ctx, options)
		},
	}
}

// wentBack asks for the present version, by a list of one object, and reports whether
// it is older than what was seen before, if anything was.
func (h *history) wentBack(ctx context.Context, seen string) (bool, error) {
	if seen == "" || seen == "0" {
		return false, nil
	}
	list, err := h.lw.ListWithContextFunc(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return false, err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return false, err
	}
	order, err := resourceversion.CompareResourceVersion(accessor.GetResourceVersion(), seen)
	return err == nil && order < 0, nil // a server whose versions are no numbers cannot be judged
}
