// Package wire reads and writes SCTP packets (RFC 9260) as far as a proxy between two endpoints needs.
package wire
