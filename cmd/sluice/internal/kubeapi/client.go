package kubeapi

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	networkingv1beta1client "k8s.io/client-go/kubernetes/typed/networking/v1beta1"
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
			"like https://192.0.2.1:6443", config.Host, err)
	}
	return config, nil
}

// clients are those of the API groups that are read. They share connections.
type clients struct{ core, discovery, networking, networkingBeta rest.Interface }

func newClients(config *rest.Config) (clients, error) {
	var core *corev1client.CoreV1Client
	var discovery *discoveryv1client.DiscoveryV1Client
	var networking *networkingv1client.NetworkingV1Client
	var networkingBeta *networkingv1beta1client.NetworkingV1beta1Client
	http, err := rest.HTTPClientFor(config)
	if err == nil {
		core, err = corev1client.NewForConfigAndClient(config, http)
	}
	if err == nil {
		discovery, err = discoveryv1client.NewForConfigAndClient(config, http)
	}
	if err == nil {
		networking, err = networkingv1client.NewForConfigAndClient(config, http)
	}
	if err == nil {
		networkingBeta, err = networkingv1beta1client.NewForConfigAndClient(config, http)
	}
	if err != nil {
		return clients{}, fmt.Errorf("prepare to reach the API server: %w", err)
	}
	return clients{core.RESTClient(), discovery.RESTClient(), networking.RESTClient(), networkingBeta.RESTClient()}, nil
}
