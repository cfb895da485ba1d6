// Package kube turns Kubernetes API objects into the vocabulary of package lb.
//
// Converting is pure: the same objects, in any order, give the same result, and what
// a Converter remembers only saves time. It has no opinion on where the objects come
// from; a watch on an API server and a folder of manifests feed the same Converter,
// so a Service behaves alike in both. It never fails: what a proxy cannot serve (a
// headless Service, an endpoint that is no IP address) is left out, as kube-proxy
// does, since an API server may hold objects that its present validation would refuse.
//
// All that the API says of Services ends here. Package lb is given what it means
// for our node: which endpoints are local, whether a hint names us, which addresses
// a traffic policy concerns. What needs the addresses of interfaces, such as which
// of them have node ports, is decided by the agent, which opens the sockets.
//
// The package starts no goroutine and logs nothing.
package kube
