// Command vm runs a test binary on Debian's stock kernel, in a small virtual
// machine, for what the kernel at hand lacks (ip_vs, sctp):
//
//	CGO_ENABLED=0 go build -C bench -o ../bin/ ./vm
//	bin/vm -prepare
//	CGO_ENABLED=0 go test -exec "$PWD/bin/vm" ./kernelmodes/ipvs
//
// What the binary writes and its exit status come out as if it had run here. In
// the machine it is root; it finds its folder's testdata, the environment
// variables that begin with SLUICE_ and SLUICE_VM set to 1, and the programs that
// our tests call, copied from this machine. There is no disk and no network.
//
// The binary must be statically linked. The machine's time is bounded: by 40 s (-grace)
// more than the binary's own -test.timeout, from when the binary begins. A machine that hangs, panics or ends
// without the binary's exit status makes the status 99, and what its console said
// is shown.
//
// With -root a whole system runs instead, with an init of its own and the kernel's modules. It says what it does on
// its second serial line, ttyS1. On its console it writes "sluice-vm: the binary begins" and, at the end,
// "sluice-vm: exit status N".
//
// The kernel is Debian's package linux-image-cloud-amd64; other architectures have no
// machine yet. -prepare downloads it through apt, which checks its signature,
// unpacks it without installing it, and puts it into the user's cache folder
// together with a root file system of modules and programs. Up to the first line of the
// binary it takes some two seconds on KVM, and ten without.
//
// Where KVM works it is used. Else QEMU interprets, needs nothing of the host at all, and the
// machine has a clock of its own (QEMU's -icount): it has one processor, an instruction takes
// a nanosecond, and waiting takes no time of the host's. So it is slow but steady, and its milliseconds
// can be counted whatever else the host does. Seen from outside a second of computing takes
// some ten, on one core of the host.
//
// Installed must be: qemu-system-x86, kmod, and the programs that are copied;
// .ci/deps sees to it.
package main
