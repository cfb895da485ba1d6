// Package manifest reads Services, their endpoints, Nodes and ServiceCIDRs from files,
// for a proxy that runs without an API server.
//
// A Loader reads files and folders of YAML or JSON: v1 Service, v1 Endpoints, v1
// Node, discovery.k8s.io/v1 EndpointSlice and networking.k8s.io/v1 ServiceCIDR, alone or
// in lists, any number in a file. A short form (short.go) stands for a Service and its
// EndpointSlices. Objects are decoded as the API server's strict decoder does, get the
// defaults that it would fill in, and are checked as far as their fields are in use
// here. Nothing is allocated: cluster IPs and node ports are those that are written.
// Every problem names its file, its line and the field.
//
// Guarantees:
//
//   - A file is applied as a whole. One that becomes broken or unreadable, or that
//     begins to contradict another, keeps the objects it had until it is repaired;
//     the problem is part of every Result meanwhile. A file that disappears from its
//     folder takes its objects with it. A path that itself becomes unreadable keeps
//     everything.
//   - The objects applied never contradict each other: no object twice, no cluster
//     IP, port and protocol in two Services, no node port and protocol either. An
//     external or load-balancer IP may be in several, as in the API.
//   - The memory and time that one file can cost are bounded (maxFileSize,
//     maxDocuments, maxValues, maxExpanded).
//   - A file is read again only when its size, time or identity changed. The objects
//     of documents whose text did not change stay the same pointers, so that they are
//     not converted again either.
//   - A file that a program has open for writing is not applied, and one that was emptied is not taken for deleted
//     until it has rested (look.go). A file whose read does not return keeps no other waiting.
//   - Nothing is logged; the caller does that from the Result.
//
// Goroutines: Load parses documents on all cores and joins them; Watch has one that takes
// the events of fsnotify, and ends both before it returns; a read that does not return keeps its own.
package manifest
