package kubeapi

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// TestHistory holds what is asked of a server whose version goes on, and of one whose
// version goes back.
func TestHistory(t *testing.T) {
	version := "100"
	var asked []string
	h := &history{resource: "services", lw: &cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.Limit == 1 {
				asked = append(asked, "version")
			} else {
				asked = append(asked, "list from "+o.ResourceVersion)
			}
			return &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: version}}, nil
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				asked = append(asked, "stream from "+o.ResourceVersion)
			} else {
				asked = append(asked, "watch from "+o.ResourceVersion)
			}
			return watch.NewFake(), nil
		},
	}}
	lw := h.watch()
	step := func(what string, err error, want ...string) {
		t.Helper()
		check(t, err)
		if !slices.Equal(asked, want) {
			t.Errorf("%s: asked %q, want %q", what, asked, want)
		}
		asked = nil
	}
	list := func(version string) error {
		_, err := lw.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: version})
		return err
	}
	open := func(version string, stream *bool) error {
		_, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: version, SendInitialEvents: stream})
		return err
	}
	step("the first list", list("0"), "list from 0")
	step("the first watch", open("100", nil), "watch from 100")
	step("goes on", open("100", nil), "version", "watch from 100")
	step("streams", open("100", new(true)), "version", "stream from 100")
	step("lists", list("100"), "version", "list from 100")
	version, h.listed = "99", false
	if err := open("100", nil); !apierrors.IsResourceExpired(err) {
		t.Errorf("goes back: %v, want that the version has expired", err)
	}
	asked = nil
	step("streams anew", open("100", new(true)), "version", "stream from ")
	step("lists anew", list("100"), "version", "list from ")
	step("goes on from there", open("99", nil), "watch from 99")
	step("and further", open("99", nil), "version", "watch from 99")
}
