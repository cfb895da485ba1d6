package load

import (
	"encoding/json"
	"time"
)

// Roles that the program can be started in; see Main.
const (
	RoleServe = "load-serve" // a ServeConfig and its sockets
	RoleAsk   = "load-ask"   // an AskConfig
	RoleRelay = "load-relay" // a RelayConfig
)

// Begin is the line that says that the time to measure begins.
const Begin = "begin"

// Kinds of sockets that a server is given.
const (
	HTTP  = "http"  // listens; a fixed answer of about 200 bytes to each request
	Sized = "sized" // listens; answers as long as each request asks for
	Echo  = "echo"  // datagrams go back as they came, one by one

	EchoGRO = "echo-gro" // the same, those that came together as one (UDP_GRO, UDP_SEGMENT)
)

// ServeConfig says what a server does. Socket i of the kinds is descriptor 3+i. The
// server runs until it is killed.
type ServeConfig struct {
	Kinds []string

	// Work is how long each request of a socket of kind Sized takes, in whole milliseconds, one after the other, as in
	// a server of one worker; it costs no processor time. Missing and 0: it is answered at once.
	Work map[int]time.Duration
}

// Kinds of clients.
const (
	KeepAlive = "keepalive" // requests one after the other on each connection
	Short     = "short"     // one request per connection; the server ends it
	Idle      = "idle"      // one request, and then silence until standard input ends
	Datagrams = "datagrams" // flows with a window of datagrams each
	DNS       = "dns"       // the same, with questions; a flow has one at a time
)

// AskConfig says what a client does. It uses its addresses in rotation.
type AskConfig struct {
	Kind     string
	Addrs    []string // IPv4 "address:port"
	Number   int      // of connections or flows at a time
	Request  int      // bytes of a request, or of a datagram; at least 12
	Response int      // bytes of an answer
	Mixed    bool     // requests and answers of 64 B to 1 MiB instead
	Window   int      // datagrams of a flow that go out together; 0 means 1; at most 64
	GSO      bool     // they go by one send (UDP_SEGMENT, udp(7)), as QUIC stacks do; at most 65,507 bytes
	GRO      bool     // answers that come together are received as one (UDP_GRO)
	Fresh    bool     // a new flow for each answer, as resolvers do
	Name     string   // that DNS asks for
	Warm     time.Duration
	Duration time.Duration // 0: until standard input ends
	Patience time.Duration // after which a datagram counts as lost; 0 means 500 ms

	// Rate is how many requests of KeepAlive, or connections of Short, are due in a second, whether those before have
	// been answered or not: an open loop. One that is due while all Number are busy waits, which counts as latency.
	// 0: the next is due with the answer. It takes epoll_pwait2(2) of Linux 5.11.
	Rate float64

	// Poisson has them due as those of many independent clients, at the same times in each run, and not evenly: a queue
	// in which nothing meets shows nothing.
	Poisson bool
}

// Result is what a client has seen in the time to measure. Latencies are in
// microseconds; of a short connection it is the whole of it, from connect to end.
type Result struct {
	Operations uint64  // requests, connections, or datagrams that were answered
	Bytes      uint64  // of payload, both ways
	Seconds    float64 // that were measured
	Errors     uint64  // connections refused, reset, cut short or silent, and failed calls
	Lost       uint64  // datagrams without an answer
	FirstError string  `json:",omitempty"`

	P50, P99, P999, Max   float64
	First50, First99      float64 // to the first byte, of short connections
	Established, Finished int     // connections of Idle: at the begin, and gone by themselves
}

// RelayConfig says what the goroutine proxy forwards.
type RelayConfig struct {
	TCP, UDP []Forward
	Timeout  time.Duration // of an idle UDP client
}

// Forward is one port and its backends, which are used in rotation.
type Forward struct {
	Listen   string
	Backends []string
}

// Args returns the arguments that have a program that calls Main be in a role. It
// panics if the configuration is not one of this package.
func Args(role string, config any) []string {
	text, err := json.Marshal(config)
	if err != nil {
		panic(err) // none of them can fail
	}
	return []string{role, string(text)}
}
