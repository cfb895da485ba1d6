// Command demo shows Sluice at work. On hosts
// made of network namespaces it starts web and DNS servers, runs Sluice with the
// manifests of deploy/examples, has curl and dig ask, scales and breaks what they
// ask for, and takes everything down again:
//
//	go build -C bench -o ../bin/ ./demo
//	bin/demo -sluice bin/sluice
//
// Each thing that Sluice promises is checked, and the exit status is 1 if one did
// not hold, 2 if the demo could not run. It needs Linux, and root or a kernel that
// gives users namespaces of their own, with nf_tables; and curl, dig, dnsmasq, ip and sysctl,
// but none of a packet filter's programs. It takes well under a minute and leaves nothing behind.
package main
