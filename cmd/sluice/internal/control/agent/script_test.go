package agent

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// TestScripts runs testdata/*.txt (testbed.RunScript): what is requested, and what the agent makes of it. The lines
// before ---- are commands. The lines after it are what was reported and logged, and each part of the state (parts)
// that has changed. The fakes check their invariants after every call. Time is synctest's. The commands:
//
//	agent [direct] [mode=PATH] [engines=PATH,...] [ports=FIRST-LAST] [window=DURATION] [pace=DURATION]
//	                        begin anew; direct: the host holds the service addresses; window: of stabilization; pace:
//	                        Config.WriteEvery
//	show PART...            print these parts of the state only
//	service NAME[:PORT] [PROTOCOL] [ADDR:PORT[,KIND][,local][,from=PREFIX]...]... [nodeport=N]
//	        [endpoints=ENDPOINT,...] [affinity=DURATION] [created=N] [path=PATH] [POLICY=VALUE]...
//	                        request a Service, or change this of it; ENDPOINT: N[*WEIGHT] is 10.244.0.N:53, or an
//	                        address, [!]: it is not ready
//	delete NAME...          these are not requested any more
//	apply                   apply what is requested; while Run runs: submit it, and wait 500 ms
//	run                     Run runs from now on, for 500 ms until the next command
//	stop                    it ends
//	churn NAME N            apply another endpoint of a Service each second, from 1 to N
//	wait DURATION           time passes
//	pause                   wait until the agent is paused, and resume
//	local ADDR...           the node has these addresses, and serves node ports there
//	inside PREFIX           pods have these addresses
//	taken, free PORT        another program has a port, or not any more
//	flows NAME N            how many flows the UDP proxy port of a Service has
//	clients PATH NAME N=ENDPOINT@DURATION...
//	                        the path knows clients 192.0.2.N with affinity, who came last at this time
//	checks ADDR:PORT...     health checks are answered there
//	eject NAME ENDPOINT     connections to an endpoint fail until it is ejected
//	trial                   the trials that are due pass
//	fail PART [ERROR]       steering, addresses or an engine fails, or does not any more
//	lack PATH ERROR         the host has no such engine
//	offer PATH              now it has
//	slow PATH DURATION      its engine takes so long to write
//	forgetful PATH          its engine cannot remember clients
//	damage PART             another program changes rules of steering, addresses or an engine, until the next look
//	look                    verify that all is intact
//	sctp refuses, sctp idle whether only sockets refuse SCTP
//	leftover PATH           an earlier process has left Services to the engine
//	adopt NAME...           take over from a process that had what is requested, these Services in the kernel
//	hand over               another agent takes over
//	prime                   start after a crash
//	offload, withdraw       the end; offload none: the kernel does not forward packets
//	drain [undo] [force] N [NAME], drain [undo] node=NODE [for=DURATION]
//	                        an operator drains an endpoint, of all Services or of one, or a node; the answer
//	                        comes with this command, or a later one
//	node NODE NAME ENDPOINT... these endpoints of a Service are on the node
func TestScripts(t *testing.T) {
	testbed.Scripts(t, func(t *testing.T, script string) (out string) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{t: t}
			out = testbed.RunScript(t, script, w.run)
			w.end()
		})
		return out
	})
}

func (w *world) run(line int, commands []string) string {
	w.line, w.said = line, nil
	for _, command := range commands {
		words := strings.Fields(command)
		if words[0] != "agent" && w.Agent == nil {
			w.t.Fatalf("line %d: there is no agent yet", line)
		}
		if !w.request(words) && !w.injure(words) {
			w.do(words)
		}
	}
	for len(w.drained) > 0 {
		w.say("drain: %s", <-w.drained)
	}
	for _, entry := range w.log.TakeAll() {
		w.say("log: %s", entry.Message)
	}
	w.holds()
	return strings.Join(append(w.said, w.changed()...), "\n")
}

func (w *world) do(words []string) {
	ctx := w.t.Context()
	switch args := words[1:]; words[0] {
	case "agent":
		w.begin(args)
	case "show":
		w.shown = args
		clear(w.printed)
	case "apply":
		if w.stop == nil {
			_ = w.Apply(ctx, w.wanted()) // observe says how it went
			return
		}
		w.submit(time.Second / 2)
	case "churn":
		for i := range w.number(args[1]) {
			w.edit(args[0], []string{"endpoints=" + strconv.FormatUint(i+1, 10)})
			w.submit(time.Second)
		}
	case "stop":
		w.end()
	case "run":
		w.stop = running(w.t, w.Agent)
		w.wait(time.Second / 2)
	case "wait":
		w.wait(w.duration(args[0]))
	case "pause":
		begin := time.Now()
		resume, err := w.Pause(ctx)
		testbed.Check(w.t, err)
		after := time.Since(begin)
		resume()
		w.wait(0)
		w.say("paused after %v", after)
	case "look":
		if w.stop == nil {
			w.say("intact: %t", w.intact(ctx))
		} else {
			w.Suspect()
			w.wait(time.Second / 2)
		}
		w.k.intact = true
		for _, e := range w.known {
			e.intact = true
		}
	case "adopt":
		state := State{Services: w.wanted().Services.AppendTo(nil)}
		for _, name := range args {
			state.Kernel = append(state.Kernel, w.service(name).ID)
		}
		testbed.Check(w.t, w.Adopt(state))
	case "hand":
		w.handOver()
	case "prime":
		testbed.Check(w.t, w.Prime(w.wanted(), redirect.Leftover{}))
	case "offload":
		forwards := len(args) == 0
		left, _ := w.Offload(ctx, [2]bool{forwards, forwards}) // observe says how it went
		w.say("left in user space: %d", left)
	case "withdraw":
		testbed.Check(w.t, w.Withdraw(ctx))
	case "drain":
		w.drain(args)
	default:
		w.t.Fatalf("line %d: unknown command %q", w.line, words[0])
	}
}

// injure runs a command that changes the node or the data path.
func (w *world) injure(words []string) (known bool) {
	args := words[1:]
	switch words[0] {
	case "local":
		w.local = nil
		for _, addr := range args {
			w.local = append(w.local, netip.MustParseAddr(addr))
		}
	case "inside":
		w.inside = []netip.Prefix{netip.MustParsePrefix(args[0])}
	case "taken", "free":
		w.k.taken[uint16(w.number(args[0]))] = words[0] == "taken"
	case "flows":
		f := lb.Frontend{Protocol: lb.UDP, Addr: w.service(args[0]).Addresses[0].Addr}
		w.k.flowing = map[lb.Frontend]bool{f: args[1] != "0"}
	case "sctp":
		w.sctp = args[0] == "refuses"
	case "fail":
		w.fail(args[0], strings.Join(args[1:], " "))
	case "lack":
		f := &w.Families[0]
		f.Engines[w.path(args[0])], f.No[w.path(args[0])] = nil, errors.New(strings.Join(args[1:], " "))
	case "offer":
		f := w.Families[0]
		f.Engines[w.path(args[0])], f.No[w.path(args[0])] = w.known[args[0]], nil
		w.Offer(false, f)
		w.wait(0)
	case "slow":
		w.known[args[0]].takes = w.duration(args[1])
	case "clients":
		w.remember(args[0], w.service(args[1]), args[2:])
	case "forgetful":
		w.known[args[0]].forgets = errors.ErrUnsupported
	case "leftover":
		w.known[args[0]].leftover = true
	case "damage":
		if e := w.known[args[0]]; e != nil {
			e.intact = false
		} else {
			w.k.intact = false
		}
	case "checks":
		w.checks = nil
		for _, addr := range args {
			w.checks = append(w.checks, netip.MustParseAddrPort(addr))
		}
	case "eject":
		w.eject(w.service(args[0]), w.endpoint(args[1]).Addr)
	case "trial":
		due, _ := w.LB.Health().Trials(w.Now(), 10)
		for _, trial := range due {
			trial.Passed(w.Now())
		}
	default:
		return false
	}
	return true
}

func (w *world) fail(part, text string) {
	var err error
	if text != "" {
		err = errors.New(text)
	}
	switch part {
	case "steering":
		w.k.fail = err
	case "addresses":
		w.k.direct.fail = err
	default:
		e := w.known[part]
		e.mu.Lock()
		defer e.mu.Unlock()
		e.fail = err
	}
}

// remember has a path know clients, as N=ENDPOINT@DURATION.
func (w *world) remember(path string, s *lb.Service, words []string) {
	var clients []lb.Client
	for _, word := range words {
		n, rest, _ := strings.Cut(word, "=")
		e, at, _ := strings.Cut(rest, "@")
		clients = append(clients, lb.Client{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(w.number(n))}),
			Backend: w.endpoint(e).Addr, LastUsed: int64(w.duration(at))})
	}
	if e := w.known[path]; e != nil {
		e.clients = map[lb.ID][]lb.Client{s.ID: clients}
		return
	}
	w.LB.Memory().RememberClients(s.ID, clients)
}

// drain asks Run for a drain, or its end.
func (w *world) drain(words []string) {
	d, undo, force := lb.Drain{By: "test"}, false, false
	for _, word := range words {
		switch name, value, named := strings.Cut(word, "="); {
		case word == "undo":
			undo = true
		case word == "force":
			force = true
		case name == "node":
			d.Node = value
		case name == "for":
			d.Deadline = w.Now() + int64(w.duration(value))
		case named:
			w.t.Fatalf("line %d: unknown word %q", w.line, word)
		case !d.Addr.IsValid():
			d.Addr = netip.AddrPortFrom(w.endpoint(word).Addr.Addr(), 0)
		default:
			d.Service = w.service(word).ID.Service()
		}
	}
	answers := w.drained
	go func() {
		if err := w.Drain(w.t.Context(), d, undo, force); err != nil {
			answers <- err.Error()
		} else {
			answers <- "is applied"
		}
	}()
	w.wait(0)
}
