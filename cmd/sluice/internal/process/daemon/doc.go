// Package daemon is the running program: it reads Services from its source, opens the data
// path, steers traffic to it and applies changes until it is stopped or upgraded.
//
//	daemon      the order of start and end (daemon.go, exit.go)
//	reports     events (reports.go)
//	source      manifests, or the API server (source.go)
//	dataPath    event loops and the TCP, UDP and SCTP servers (datapath.go)
//	web         health checks and metrics over HTTP (web.go)
//	control     from objects to what is to be served (control.go)
//	steering    rules and kernel modes of each address family, and their lease (steering.go, engines.go, lease.go)
//
// Each of these has one job and is made by the daemon, on which none depends, in this order. Then the daemon makes the
// agent, which works with all of them.
//
// Goroutines: the source's, the agent's, and one that renews the lease, all joined by Run.
package daemon
