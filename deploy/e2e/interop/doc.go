// Package interop tests Sluice with protocols' own libraries: clients and servers of QUIC, DTLS and SIP, and the health
// service of gRPC. Manifests feed Sluice, so no API server is needed. "make e2e" runs it.
package interop
