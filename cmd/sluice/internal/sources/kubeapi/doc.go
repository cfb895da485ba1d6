// Package kubeapi reads Services, EndpointSlices and the own Node from a Kubernetes
// API server, and keeps reading them.
//
// What it hands out is what the server holds, whole, trimmed to what package kube
// reads, and in the same objects as before where they say the same: a server that
// was away for hours and has the same Services changes nothing. While a
// server does not answer, what it said last stays.
//
// Each kind has a reflector of client-go, which lists and watches and starts again
// when the stream breaks. In place of client-go's informer stands a collection, a
// sorted list of the objects themselves: no code here needs single events, an index
// or a queue, what is wanted is the whole, in an order that stays, in objects that
// stay. For 10,000 objects a collection takes 80 KB and an indexer 1.4 MB, besides
// the objects. A change costs a page of the list (package lists).
//
// Goroutines: Watcher.Run starts one for each kind, in which client-go starts its
// own, and joins them.
package kubeapi
