// Package lab is for the tests of engines alone; cmd/sluice/internal/e2e/lab is for those of the whole program. It
// has a node whose kernel forwards Services to pods, clients that ask there, every cell of the matrix of what becomes
// of them, the packets of kube-proxy's own tests, and Services that change at random.
package lab
