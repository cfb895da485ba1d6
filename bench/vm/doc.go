// Command vm runs a test binary on Debian's stock kernel, in a small virtual
// machine, for what the kernel at hand lacks (ip_vs, sctp):
//
//	CGO_ENABLED=0 go build -o bin/vm ./bench/vm
//	bin/vm -prepare
//	CGO_ENABLED=0 go test -exec "$PWD/bin/vm" ./kernelmodes/ipvs
//
// What the binary writes and its exit status come out as if it had run here. In
// the machine it is root; it finds its folder's testdata, the environment
// variables that begin with SLUICE_ and SLUICE_VM set to 1, and the programs that
// our tests call, copied from this machine. There is no disk and no network.
//
// The binary must be statically linked. The machine's time is bounded: by 40 s (-grace)
// more than the binary's own -test.timeout. A machine that hangs, panics or ends
// without the binary's exit status makes the status 99, and what its console said
// is shown.
//
// The kernel is Debian's package linux-image-cloud-amd64; other architectures have no
// machine yet. -prepare downloads it through apt, which checks its signature,
// unpacks it without installing it, and puts it into the user's cache folder
// together with a root file system of modules and programs. Where KVM works it is
// used; else QEMU interprets, three to fourteen times slower, and needs nothing of
// the host at all. Up to the first line of the binary it takes about two seconds.
//
// Installed must be: qemu-system-x86, kmod, and the programs that are copied;
// .ci/deps sees to it.
package main
