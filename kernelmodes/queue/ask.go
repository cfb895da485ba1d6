package queue

// Defaults of an engine's Ask: the queues, and the bits of marks. The bits are neither kube-proxy's (bit 14, which is
// Masquerade's too) nor below it.
const (
	First = 29500
	Mask  = 0xffff0000
)
