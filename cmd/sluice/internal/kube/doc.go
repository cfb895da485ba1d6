// Package kube turns Kubernetes API objects into the vocabulary of package lb.
//
// Convert is pure: the same objects, in any order, give the same services in
// the same order. It has no opinion on where the objects come from; a watch on
// an API server and a folder of manifests feed the same function, so a Service
// behaves alike in both. It never fails: what a proxy cannot serve (a headless
// Service, an endpoint that is no IP address) is left out, as kube-proxy does,
// since an API server may hold objects that its present validation would refuse.
//
// The package starts no goroutine and logs nothing.
package kube
