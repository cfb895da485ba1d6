// Package notify reports to the service manager that runs the program, by the protocol of
// sd_notify(3): that it serves, reloads or stops, which process serves after a hand-over, and
// that it lives. The manager is systemd, or package supervise in a container. Without one
// (NOTIFY_SOCKET) nothing is sent.
//
// Goroutines: none of its own.
package notify
