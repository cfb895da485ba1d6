package probes

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/lb"
)

// maxSend bounds a datagram to send, in bytes: one that every path takes whole.
const maxSend = 1200

// request is an annotation: a probe of Kubernetes, or one of the two that ask by UDP.
type request struct {
	corev1.Probe `json:",inline"`
	DNS          *dnsAction `json:"dns,omitempty"`
	UDP          *udpAction `json:"udp,omitempty"`
}

// dnsAction asks a DNS server for the records of a name.
type dnsAction struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"`
	Port int32  `json:"port,omitempty"`
}

// udpAction sends a datagram and waits for an answer.
type udpAction struct {
	Send   string `json:"send"`
	Expect string `json:"expect,omitempty"`
	Port   int32  `json:"port,omitempty"`
}

// askByUDP makes p one that asks at a UDP port, unless err says already what is wrong.
func (p *Probe) askByUDP(port int32, err *error) {
	p.datagrams = true
	if *err == nil {
		p.port, *err = portOf(intstr.FromInt32(port))
	}
}

// Protocol returns that of the checks.
func (p *Probe) Protocol() lb.Protocol {
	if p.datagrams {
		return lb.UDP
	}
	return lb.TCP
}

// dnsTypes are the records that a check may ask for.
var dnsTypes = map[string]dnsmessage.Type{"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA,
	"CNAME": dnsmessage.TypeCNAME, "MX": dnsmessage.TypeMX, "NS": dnsmessage.TypeNS, "PTR": dnsmessage.TypePTR,
	"SOA": dnsmessage.TypeSOA, "SRV": dnsmessage.TypeSRV, "TXT": dnsmessage.TypeTXT}

// check returns the check that a requests, or which field is wrong.
func (a *dnsAction) check() (func(context.Context, Place) error, error) {
	if a.Name == "" {
		return nil, errors.New("dns.name: give a name that the server answers for, as cluster.local")
	}
	name, err := dnsmessage.NewName(strings.TrimSuffix(a.Name, ".") + ".")
	question := dnsmessage.Question{Name: name, Type: dnsTypes[cmp.Or(a.Type, "A")], Class: dnsmessage.ClassINET}
	if _, packErr := ask(0, question); err != nil || packErr != nil {
		return nil, errors.New("dns.name: give a name of at most 253 bytes, its labels 1 to 63 bytes each")
	}
	if question.Type == 0 {
		return nil, fmt.Errorf("dns.type %q: give A, AAAA, CNAME, MX, NS, PTR, SOA, SRV or TXT", a.Type)
	}
	return func(ctx context.Context, to Place) error { return resolve(ctx, to, question) }, nil
}

// ask returns the message of a question.
func ask(id uint16, q dnsmessage.Question) ([]byte, error) {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{q}}
	return m.Pack()
}

// resolve passes if the server says which records there are, or that there is no such name.
func resolve(ctx context.Context, to Place, q dnsmessage.Question) error {
	id := uint16(rand.Uint32())
	m, err := ask(id, q)
	if err != nil {
		return err
	}
	return to.exchange(ctx, m, func(answer []byte) (bool, error) {
		var p dnsmessage.Parser
		h, err := p.Start(answer)
		if err != nil || h.ID != id || !h.Response {
			return false, nil // of someone else
		}
		if h.RCode != dnsmessage.RCodeSuccess && h.RCode != dnsmessage.RCodeNameError {
			return true, failure("DNS status " + strings.TrimPrefix(h.RCode.String(), "RCode"))
		}
		return true, nil
	})
}

// check returns the check that a requests, or which field is wrong.
func (a *udpAction) check() (func(context.Context, Place) error, error) {
	if a.Send == "" || len(a.Send) > maxSend {
		return nil, fmt.Errorf("udp.send: give 1 to %d bytes that the server answers", maxSend)
	}
	send, expect := []byte(a.Send), []byte(a.Expect)
	return func(ctx context.Context, to Place) error {
		return to.exchange(ctx, send, func(answer []byte) (bool, error) {
			if !bytes.Contains(answer, expect) {
				return true, failure("the answer does not contain what udp.expect says")
			}
			return true, nil
		})
	}, nil
}

// exchange sends a datagram and passes the answers to read, until that is done.
func (p Place) exchange(ctx context.Context, send []byte, read func(answer []byte) (done bool, err error)) error {
	c, err := new(net.Dialer).DialContext(ctx, "udp", p.Addr.String())
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if p.Proxy != 0 {
		send = slices.Concat(proxyproto.AppendLocal(nil, p.Proxy), send)
	}
	if _, err = c.Write(send); err != nil {
		return err
	}
	answer := make([]byte, maxAnswer)
	for {
		n, err := c.Read(answer)
		if err != nil {
			return err
		}
		if done, err := read(answer[:n]); done {
			return err
		}
	}
}
