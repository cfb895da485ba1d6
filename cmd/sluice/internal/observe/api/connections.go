package api

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

// Server has connections, associations or flows on loops (tcp.Server and others), or in the kernel.
type Server interface {
	Look(loop, from int, q *look.Query, visit func(look.Info) (more bool)) (next int, err error)
}

const (
	// lookTime is how long a request looks for connections before it answers with what it has, and with where to go on.
	lookTime = time.Second

	// A loop is left alone for lookShare times as long as a look has taken, and lookPause at the most, since a look
	// may have waited for a busy loop. A look takes look.Budget at the most.
	lookShare = 4
	lookPause = lookShare * time.Duration(look.Budget)

	// firstPage is how many connections the first page has, unless it is said: loops are looked at for a fifth of the
	// time, so that a usual page takes tens of milliseconds, and a person waits for the first.
	firstPage = 50

	// mostClients bounds the clients that one request keeps apart.
	mostClients = 65536

	// usualClients is how many are answered.
	usualClients = 20
)

var connectionParams = []string{"namespace", "name", "port", "client", "endpoint", "protocol", "state"}

// place is where a page of connections begins, in the process that has named it: in another one descriptors are others.
type place struct{ Process, Server, Loop, From int }

// query returns which connections a request is about.
func query(q url.Values) (out look.Query, state look.State, err error) {
	out.Namespace, out.Name, state = q.Get("namespace"), q.Get("name"), look.State(q.Get("state"))
	if state != "" && !slices.Contains(look.States, state) {
		return out, state, refuse("state %q is unknown: give one of %v", state, look.States)
	}
	if text := q.Get("client"); text != "" {
		if out.Client, err = prefix(text); err != nil {
			return out, state, refuse("client %q is no address and no range: give one like 10.0.0.1 or 10.0.0.0/24",
				text)
		}
	}
	if text := q.Get("endpoint"); text != "" {
		addr, err := netip.ParseAddr(text)
		if out.Backend = netip.AddrPortFrom(addr, 0); err != nil {
			if out.Backend, err = netip.ParseAddrPort(text); err != nil {
				return out, state, refuse("endpoint %q is no address: give one like 10.0.0.1 or 10.0.0.1:80", text)
			}
		}
	}
	if text := q.Get("protocol"); text != "" {
		i := slices.IndexFunc(protocols, func(p lb.Protocol) bool { return strings.EqualFold(p.String(), text) })
		if i < 0 {
			return out, state, refuse("protocol %q is unknown: give TCP, UDP or SCTP", text)
		}
		out.Protocol, out.ByProtocol = protocols[i], true
	}
	return out, state, nil
}

func prefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	const mapped = 96 // bits of ::ffff:0:0/96
	if p.Addr().Is4In6() && p.Bits() >= mapped {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p, err
}

// each passes what there is to visit, from a place on, until that wants no more or time is up, and returns where to go
// on, and whether there is more.
func (s *Sources) each(q *look.Query, at place, within time.Duration, visit func(look.Info) bool) (place, bool, error) {
	until := time.Now().Add(within)
	for ; at.Server < len(s.Servers); at.Server, at.Loop = at.Server+1, 0 {
		if q.ByProtocol && at.Server < len(protocols) && protocols[at.Server] != q.Protocol {
			continue
		}
		for ; at.Loop < s.Loops; at.Loop, at.From = at.Loop+1, 0 {
			for at.From != look.End {
				goOn := true
				next, err := s.look(q, at, func(i look.Info) bool {
					i.Loop = at.Loop // not of what the kernel has
					goOn = visit(i)
					return goOn
				})
				if err != nil {
					return at, false, err
				}
				if at.From = next; (!goOn || time.Now().After(until)) && next != look.End {
					return at, true, nil
				}
				if !goOn {
					at.Loop, at.From = at.Loop+1, 0
					return at, true, nil
				}
			}
		}
		at.From = 0
	}
	return at, false, nil
}

// look looks at a part of what a loop has, when no other request does, and leaves the loop alone for some time after
// that: those who look take a fifth of it at the most, all together.
func (s *Sources) look(q *look.Query, at place, visit func(look.Info) bool) (next int, err error) {
	s.looking.Lock()
	defer s.looking.Unlock()
	began := time.Now()
	next, err = s.Servers[at.Server].Look(at.Loop, at.From, q, visit)
	if err != nil {
		err = &Error{http.StatusGone, "the process that was asked has handed over, or ends: ask anew"}
	}
	<-time.After(min(lookPause, lookShare*time.Since(began)))
	return next, err
}

func (s *Sources) connections(q url.Values) (any, error) {
	wanted, state, err := query(q)
	if err != nil {
		return nil, err
	}
	usual := uint64(usualPage)
	if !q.Has("continue") {
		usual = firstPage
	}
	n, err := number(q, "limit", usual, largestPage)
	if err != nil {
		return nil, err
	}
	at := place{Process: os.Getpid()}
	if text := q.Get("continue"); text != "" {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err == nil {
			err = json.Unmarshal(raw, &at)
		}
		if err != nil || at.Server < 0 || at.Loop < 0 || at.From < 0 {
			return nil, refuse("continue %q is none that was answered", text)
		}
		if at.Process != os.Getpid() {
			return nil, &Error{http.StatusGone, "another process has taken over since the list began: ask for it anew"}
		}
	}
	page, limit, ofPort := List[Connection]{Items: []Connection{}}, max(int(n), 1), s.ofPort(q)
	at, more, err := s.each(&wanted, at, lookTime, func(i look.Info) bool {
		if (state == "" || i.State == state) && ofPort(i.Service) {
			page.Items = append(page.Items, connectionOf(&i))
		}
		return len(page.Items) < limit
	})
	if err != nil {
		return nil, err
	}
	if more {
		text, err := json.Marshal(at)
		if err != nil {
			return nil, err
		}
		page.Continue = base64.RawURLEncoding.EncodeToString(text)
	}
	return page, nil
}

// Connections returns connections of a Service: so many at most, and those that are found within a time. more says that
// there may be others.
func (s *Sources) Connections(of lb.Name, limit int, within time.Duration) (all []Connection, more bool, err error) {
	q := look.Query{Namespace: of.Namespace, Name: of.Name}
	_, more, err = s.each(&q, place{}, within, func(i look.Info) bool {
		all = append(all, connectionOf(&i))
		return len(all) < limit
	})
	return all, more, err
}

func connectionOf(i *look.Info) Connection {
	c := Connection{Protocol: i.Protocol.String(), Client: i.Client.String(), State: string(i.State),
		Path: agent.Userspace.String(), Failed: i.Failed, RTT: i.RTT.Seconds(), Retransmits: i.Retransmits}
	if k := i.Kernel; k != nil {
		c.Path, c.PacketsIn, c.PacketsOut = k.Path, k.PacketsIn, k.PacketsOut
	} else {
		c.Loop = &i.Loop
	}
	if i.Kernel == nil || i.Kernel.Counted {
		c.BytesIn, c.BytesOut = &i.In, &i.Out
	}
	if i.Age >= 0 {
		age := i.Age.Seconds()
		c.Age = &age
	}
	if i.Asked.IsValid() {
		c.Address = i.Asked.String()
	}
	if i.Backend.IsValid() {
		c.Endpoint = i.Backend.String()
	}
	if i.Service != (lb.ID{}) {
		id := idOf(i.Service)
		c.Service = &id
	}
	if i.Known {
		idle := i.Idle.Seconds()
		c.Idle = &idle
	}
	return c
}

// clients sums up what is open of each client address.
func (s *Sources) clients(q url.Values) (any, error) {
	wanted, state, err := query(q)
	if err != nil {
		return nil, err
	}
	n, err := number(q, "limit", usualClients, largestPage)
	if err != nil {
		return nil, err
	}
	by := q.Get("sort")
	if by != "" && by != "connections" && by != "bytes" {
		return nil, refuse("sort %q is unknown: give connections or bytes", by)
	}
	all, out := make(map[netip.Addr]*Talker), Talkers{Items: []Talker{}}
	at, more, ofPort := place{}, true, s.ofPort(q)
	for deadline := time.Now().Add(writeTimeout / 2); more; {
		at, more, err = s.each(&wanted, at, lookTime, func(i look.Info) bool {
			if (state == "" || i.State == state) && ofPort(i.Service) {
				out.add(all, &i)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		if out.Partial = more; time.Now().After(deadline) {
			break
		}
	}
	out.Clients = len(all)
	for _, c := range all {
		out.Items = append(out.Items, *c)
	}
	slices.SortFunc(out.Items, func(a, b Talker) int {
		most := cmp.Compare(b.Connections, a.Connections)
		if by == "bytes" {
			most = cmp.Compare(b.BytesIn+b.BytesOut, a.BytesIn+a.BytesOut)
		}
		return cmp.Or(most, strings.Compare(a.Address, b.Address))
	})
	out.Items = out.Items[:min(len(out.Items), max(int(n), 1))]
	return out, nil
}

// add counts a connection for its client.
func (out *Talkers) add(all map[netip.Addr]*Talker, i *look.Info) {
	addr := i.Client.Addr().Unmap()
	c := all[addr]
	if c == nil {
		if len(all) >= mostClients {
			out.Others++
			return
		}
		c = &Talker{Address: addr.String(), services: make(map[lb.Name]struct{}, 1)}
		all[addr] = c
	}
	c.Connections++
	c.BytesIn += i.In
	c.BytesOut += i.Out
	c.Oldest = max(c.Oldest, i.Age.Seconds())
	if len(c.services) < mostServices && i.Service != (lb.ID{}) {
		c.services[i.Service.Service()] = struct{}{}
		c.Services = len(c.services)
	}
}

// mostServices is how many Services of one client are kept apart.
const mostServices = 16
