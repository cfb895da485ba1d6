package queue

// Defaults of an engine's Ask: the queues, the bits of marks, and how many connections are followed. The bits are
// neither kube-proxy's (bit 14, which is Masquerade's too) nor below it.
const (
	First = 29500
	Mask  = 0xffff0000

	Follow = 25
)
