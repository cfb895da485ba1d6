// Package sysctl writes the kernel settings that the data paths need: the size and the timeouts of conntrack's table,
// and two settings of TCP. It also reads how full the table is.
//
// It works in the network namespace of the calling thread and keeps no state. On other systems than Linux, every call
// but ReuseTimeWait returns errors.ErrUnsupported.
package sysctl
