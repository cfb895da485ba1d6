// Package packet forwards SCTP on a kernel that has none: raw sockets see all SCTP packets for the host, and those
// of our frontends and associations are sent on with other addresses, ports and CRC32c.
package packet
