package probes

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// maxSeconds bounds each duration of a probe but for its timeout, in which it takes a place of others, and maxTimes
	// its thresholds.
	maxSeconds = 3600
	maxTimeout = 10
	maxTimes   = 1000

	// MaxText is the most bytes that an annotation may have.
	MaxText   = 4 << 10
	maxAnswer = 10 << 10 // bytes of an answer that are read, and of its headers
)

// Probe is what an annotation requests.
type Probe struct {
	Delay, Period, Timeout time.Duration
	Failures, Successes    int32                                     // in a row that change its verdict
	port                   uint16                                    // 0: the endpoint's own
	datagrams              bool                                      // it asks by UDP
	Once                   func(ctx context.Context, to Place) error // asks; see Ask
}

// Place is where a check connects, and the PROXY protocol that is spoken there: 0 is none.
type Place struct {
	Addr  netip.AddrPort
	Proxy proxyproto.Version
}

// dial connects. To a server that waits for a PROXY header it says that the connection is the proxy's own.
func (p Place) dial(ctx context.Context) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", p.Addr.String())
	if err != nil {
		return nil, err
	}
	if p.Proxy != 0 {
		_, _ = c.Write(proxyproto.AppendLocal(nil, p.Proxy)) // a socket that has failed fails what follows
	}
	return c, nil
}

// At returns where an endpoint of s is checked. PROXY headers are for the port that gets those of clients, too.
func (p *Probe) At(s *lb.Service, addr netip.AddrPort) Place {
	if p.port != 0 && p.port != addr.Port() {
		return Place{Addr: netip.AddrPortFrom(addr.Addr(), p.port)}
	}
	if p.datagrams != (s.Protocol == lb.UDP) {
		return Place{Addr: addr}
	}
	return Place{addr, proxyproto.Version(s.Requests().ProxyVersion(s.Protocol))}
}

// Ask asks once, and returns why the endpoint has failed, in words of our own.
func (p *Probe) Ask(ctx context.Context, to Place) error { return classOf(p.Once(ctx, to)) }

// Check returns what is wrong with an annotation, or nil.
func Check(text string) error {
	_, err := Parse(text)
	return err
}

// Parse reads an annotation.
func Parse(text string) (*Probe, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("read probe: %d bytes are too long: give at most %d", len(text), MaxText)
	}
	var spec request
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		return nil, fmt.Errorf("read probe: %w", err)
	}
	p := &Probe{Failures: 3, Successes: 1}
	var errs []error
	number := func(name string, v, standard, least, most int32) int32 {
		if v == 0 {
			v = standard
		}
		if v < least || v > most {
			errs = append(errs, fmt.Errorf("%s %d: give %d to %d", name, v, least, most))
		}
		return v
	}
	seconds := func(name string, v, standard, least int32) time.Duration {
		return time.Duration(number(name, v, standard, least, maxSeconds)) * time.Second
	}
	p.Delay = seconds("initialDelaySeconds", spec.InitialDelaySeconds, 0, 0)
	p.Period = seconds("periodSeconds", spec.PeriodSeconds, 10, 1)
	p.Timeout = time.Duration(number("timeoutSeconds", spec.TimeoutSeconds, 1, 1, maxTimeout)) * time.Second
	p.Failures = number("failureThreshold", spec.FailureThreshold, 3, 1, maxTimes)
	p.Successes = number("successThreshold", spec.SuccessThreshold, 1, 1, maxTimes)
	errs = append(errs, p.handle(&spec))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// handle sets what a check does.
func (p *Probe) handle(h *request) (err error) {
	var handlers []string
	if h.TCPSocket != nil {
		handlers = append(handlers, "tcpSocket")
		p.port, err = portOf(h.TCPSocket.Port)
		p.Once = connect
	}
	if h.HTTPGet != nil {
		handlers = append(handlers, "httpGet")
		p.port, err = portOf(h.HTTPGet.Port)
		p.Once = httpGet{h.HTTPGet}.check
	}
	if h.GRPC != nil {
		handlers = append(handlers, "grpc")
		p.port, err = portOf(intstr.FromInt32(h.GRPC.Port))
		service := ""
		if h.GRPC.Service != nil {
			service = *h.GRPC.Service
		}
		p.Once = func(ctx context.Context, to Place) error { return grpc(ctx, to, service) }
	}
	if h.DNS != nil {
		handlers = append(handlers, "dns")
		p.Once, err = h.DNS.check()
		p.askByUDP(h.DNS.Port, &err)
	}
	if h.UDP != nil {
		handlers = append(handlers, "udp")
		p.Once, err = h.UDP.check()
		p.askByUDP(h.UDP.Port, &err)
	}
	switch {
	case h.Exec != nil:
		return errors.New("exec: give tcpSocket, httpGet, grpc, dns or udp, since endpoints are checked from the node")
	case len(handlers) != 1:
		return fmt.Errorf("%d handlers %v: give one of tcpSocket, httpGet, grpc, dns and udp", len(handlers), handlers)
	case h.TCPSocket != nil && h.TCPSocket.Host != "" || h.HTTPGet != nil && h.HTTPGet.Host != "":
		return errors.New("host: leave it out, since each endpoint is checked at its own address")
	}
	return err
}

func portOf(port intstr.IntOrString) (uint16, error) {
	if port.Type == intstr.String || port.IntVal < 0 || port.IntVal > math.MaxUint16 {
		return 0, fmt.Errorf("port %q: give a number from 1 to 65535, or none for the endpoint's own", port.String())
	}
	return uint16(port.IntVal), nil
}

// connect passes if the endpoint accepts.
func connect(ctx context.Context, to Place) error {
	c, err := to.dial(ctx)
	if err != nil {
		return err
	}
	return c.Close()
}

// httpGet passes with a status from 200 to 399.
type httpGet struct{ *corev1.HTTPGetAction }

func (g httpGet) check(ctx context.Context, to Place) error {
	scheme := "http"
	if g.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	path := "/" + strings.TrimPrefix(g.Path, "/")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+to.Addr.String()+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "sluice-check")
	for _, h := range g.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			request.Host = h.Value
			continue
		}
		request.Header.Add(h.Name, h.Value)
	}
	c, err := to.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if scheme == "http" {
		return statusOf(c, request)
	}
	// As the kubelet: who answers is not what is asked.
	return statusOf(tls.Client(c, &tls.Config{InsecureSkipVerify: true}), request)
}

// statusOf asks over a connection and judges the status of the answer. http.Transport would put what a server says
// before it is asked into the log.
func statusOf(c net.Conn, request *http.Request) error {
	request.Close = true
	if err := request.Write(c); err != nil {
		return err
	}
	in := bufio.NewReader(io.LimitReader(c, maxAnswer))
	for {
		response, err := http.ReadResponse(in, request)
		switch {
		case err != nil:
			return err
		case response.StatusCode < http.StatusOK && response.StatusCode != http.StatusSwitchingProtocols:
			continue // more follows
		}
		_, _ = io.Copy(io.Discard, response.Body) // else the endpoint would get a reset
		if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
			return failure(fmt.Sprintf("status %d", response.StatusCode))
		}
		return nil
	}
}

// newTransport returns one for a single request of gRPC, of which nothing is left when ctx ends: by itself
// http.Transport goes on to connect, and to shake hands, for as long as the other side likes.
func newTransport(ctx context.Context, to Place) *http.Transport {
	return &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			c, err := to.dial(ctx)
			if at, bounded := ctx.Deadline(); err == nil && bounded {
				err = c.SetDeadline(at)
			}
			return c, err
		}}
}

// grpc asks as the gRPC health checking protocol has it (grpc/health/v1/health.proto), without TLS as the kubelet. One
// unary call needs no more than HTTP/2.
func grpc(ctx context.Context, to Place, service string) error {
	message := append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(service))), service...) // field 1, a string
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+to.Addr.String()+"/grpc.health.v1.Health/Check", strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	request.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"},
		"User-Agent": {"sluice-check"}}
	transport := newTransport(ctx, to)
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return err
	}
	status := response.Trailer.Get("Grpc-Status")
	if status == "" {
		status = response.Header.Get("Grpc-Status") // an answer without a body
	}
	if status != "0" {
		code, err := strconv.ParseUint(status, 10, 8)
		if err != nil {
			return errMalformed
		}
		return failure(fmt.Sprintf("gRPC status %d", code))
	}
	const prefix = 5 // a flag and the length
	if len(answer) < prefix || len(answer) > prefix && answer[prefix] != 1<<3 {
		return errMalformed
	}
	var serving uint64 // SERVING is 1
	if len(answer) > prefix {
		serving, _ = binary.Uvarint(answer[prefix+1:])
	}
	if serving != 1 {
		return failure(fmt.Sprintf("health status %d, not SERVING", serving))
	}
	return nil
}
