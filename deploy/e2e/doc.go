// Package e2e tests Sluice against a real Kubernetes API server: the cases of the
// upstream end-to-end suite that concern a proxy (CASES.md lists them), and what happens
// to Sluice when the control plane fails, restarts or is slow.
//
// kube-apiserver and etcd run on the router of package testbed, Sluice on the node,
// with RBAC on and no rights but those of the ClusterRole in deploy/base. Pods are
// hosts of the testbed; the tests write their EndpointSlices, as the controller
// would, and what they expect is what clients see. After each test the API server's
// audit log is read: Sluice must not have asked for anything that it may not do.
//
// Two tests put the real kube-proxy of the same version there before, after and beside
// Sluice. Others render the overlays with each kustomize that a kubectl in use has built
// in, apply them, uninstall them, and have a real containerd find the image.
//
// Package interop, below this one, needs no API server.
//
// "make e2e" gets all that is needed and runs everything, once on the distribution's
// etcd, with which an API server answers lists, and TestWatch* once more on a present
// one, with which it streams them. Without anything in Go's build cache the API server
// is built in 3 minutes on two busy cores (5.5 minutes of CPU), with it in seconds;
// the tests take about 3 minutes. The outage of the control plane lasts 10 s:
// "go test -run TestWatchControlPlaneAway . -outage 1m" has a longer one.
package e2e
