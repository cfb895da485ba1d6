// Package proxyproto encodes headers of the PROXY protocol, versions 1 and 2, which tell a server who the client of a
// proxied connection is (proxy-protocol.txt of HAProxy).
//
// It is pure: it appends to what it is given, allocates nothing if there is room (MaxLen), and never fails. A version 2
// header has the TLVs that [Header] names, and last a CRC32C, by which a reader finds out that it is whole.
package proxyproto
