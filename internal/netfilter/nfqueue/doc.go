// Package nfqueue has a function decide about the first packet of each flow that rules send to a
// queue of the kernel (nfnetlink_queue), by netlink and without any library: it goes on with a
// mark, or is dropped.
//
// [Open] binds some consecutive queues, each with a socket and a goroutine of its own, which has a thread. Of a packet
// the kernel copies the headers only. A goroutine reads what there is, decides, and sends all verdicts by one system
// call. Where packets come fast it lets some come together. Nothing is allocated for a packet.
//
// Protocol, client and asked address identify a flow. All its packets have to come to the same queue, which remembers
// the flows that it has decided last: packets that were sent before the verdict get the same one.
//
// Nothing ever waits for this process: what finds a queue full goes on as it came
// (NFQA_CFG_F_FAIL_OPEN), and so does what comes when no process has the queue, if the rule says
// bypass. Close loses nothing. What is in a queue is lost when its process dies, and when any program
// removes a hook of netfilter, as a base chain of type filter (nf_queue_nf_hook_drop). A client sends
// it again, by TCP after a second.
//
// It is for Linux with CAP_NET_ADMIN, and works in the network namespace of the thread that calls
// Open.
package nfqueue
