package kubeapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"
	componentconfig "k8s.io/component-base/config/v1alpha1"
)

// RESTConfig returns how to reach the API server, as kube-proxy reads the same
// settings: by the kubeconfig, in which master replaces the URL; or by master alone;
// or, with neither, as the service account of the pod that the program runs in.
// A token in a file is read again every minute, and when it was refused. Nothing is
// asked of the server yet.
func RESTConfig(c componentconfig.ClientConnectionConfiguration, master string) (*rest.Config, error) {
	config, err := connection(c.Kubeconfig, master)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "sluice"
	config.ContentType = c.ContentType
	config.AcceptContentTypes = c.AcceptContentTypes
	if c.AcceptContentTypes == "" && c.ContentType == runtime.ContentTypeProtobuf {
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	if file := config.BearerTokenFile; file != "" {
		// By itself client-go would use a token for a minute after it was refused.
		config.BearerToken, config.BearerTokenFile = "", ""
		config.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(file)))
	}
	config.QPS = c.QPS
	config.Burst = int(c.Burst)
	return config, nil
}

func connection(kubeconfig, master string) (*rest.Config, error) {
	if kubeconfig == "" && master == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("nothing says where Services come from: give --kubeconfig, or --manifests with a " +
				"file or folder, or run in a pod with a service account")
		}
		if err != nil {
			return nil, fmt.Errorf("read the service account of the pod: %w: mount its token, or give --kubeconfig",
				err)
		}
		return config, nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: master}}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig %s: %w: give a file that kubectl can use", kubeconfig, err)
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err == nil && server.Scheme != "https" && server.Scheme != "http" {
		err = fmt.Errorf("%s is not a scheme of HTTP", server.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("use the API server %q: %w: give --master, or the server in the kubeconfig, as a URL "+
			"like https://192.0.2.1:6443", Server(config), err)
	}
	return config, nil
}

// Server returns the address of the API server without a password.
func Server(config *rest.Config) string {
	u, err := url.Parse(config.Host)
	if err != nil {
		return "..." // whatever it has
	}
	return u.Redacted()
}

// clients are those of the API groups that are read. They share connections.
type clients struct{ core, discovery, networking, networkingBeta rest.Interface }

func newClients(config *rest.Config) (c clients, err error) {
	shared, err := rest.HTTPClientFor(config)
	for _, group := range []struct {
		client  *rest.Interface
		version schema.GroupVersion
	}{
		{&c.core, corev1.SchemeGroupVersion}, {&c.discovery, discoveryv1.SchemeGroupVersion},
		{&c.networking, networkingv1.SchemeGroupVersion}, {&c.networkingBeta, networkingv1beta1.SchemeGroupVersion},
	} {
		if err == nil {
			*group.client, err = newClient(config, group.version, shared)
		}
	}
	if err != nil {
		return clients{}, fmt.Errorf("prepare to reach the API server: %w", err)
	}
	return c, nil
}

// Events returns a client of events.k8s.io/v1, with connections of its own.
func Events(config *rest.Config) (rest.Interface, error) {
	own, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	return newClient(config, eventsv1.SchemeGroupVersion, own)
}

// newClient returns a client of one API group.
func newClient(config *rest.Config, version schema.GroupVersion, over *http.Client) (rest.Interface, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion, c.APIPath = &version, "/apis"
	if version.Group == "" {
		c.APIPath = "/api"
	}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientForConfigAndClient(c, over)
}

// scheme has the kinds that are read and written. That of client-go has those of all of the API's 55 groups, which are
// 10 MB of the program and a third of the processor time of its start.
var scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for version, kinds := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion: {
			&corev1.Service{}, &corev1.ServiceList{}, &corev1.Node{}, &corev1.NodeList{}},
		discoveryv1.SchemeGroupVersion:       {&discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}},
		networkingv1.SchemeGroupVersion:      {&networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{}},
		networkingv1beta1.SchemeGroupVersion: {&networkingv1beta1.ServiceCIDR{}, &networkingv1beta1.ServiceCIDRList{}},
		eventsv1.SchemeGroupVersion:          {&eventsv1.Event{}},
	} {
		s.AddKnownTypes(version, kinds...)
		metav1.AddToGroupVersion(s, version)
	}
	return s
}
