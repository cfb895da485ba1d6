// Package shares divides what Services and clients have in common, such as file descriptors, so that one of them can
// never take what the others need, and that what is idle can be used by any.
//
// The rule is that of dynamic thresholds (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory
// Packet Switches", IEEE/ACM Transactions on Networking 6(2), 1998): a holder may take more while what it has is at
// most a fixed multiple of what is free. A holder alone gets its percentage; several that want all of it get equal
// parts; and a part stays free for those that come later. No list of who waits is needed.
//
// The package is pure: its users say what is free, and when.
package shares
