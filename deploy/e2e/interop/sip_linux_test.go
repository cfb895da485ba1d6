package interop

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/emiago/sipgo"
	"github.com/emiago/sipgo/sip"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// sipClient has each pod answer calls, and makes one. Then it asks within the dialog of the call, which is unknown to
// other endpoints: they answer 481.
func sipClient(t *testing.T, c *cluster) asker {
	t.Helper()
	service := netip.MustParseAddrPort("10.96.0.46:5060")
	for _, pod := range c.Pods {
		serveSIP(t, pod, service)
	}
	c.publish("sip", service.String(), 5060)

	conn, ua := sipAgent(t, c.Client, ":0")
	// The response is to come to the port that the request came from (RFC 3581), which is Sluice's.
	client, err := sipgo.NewClient(ua, sipgo.WithClientConnectionAddr(conn.LocalAddr().String()), sipgo.WithClientNAT())
	testbed.Check(t, err)
	serve(t, func() { _ = errors.Join(conn.Close(), ua.Close()) }, func() error { return ua.TransportLayer().ServeUDP(conn) })
	local := conn.LocalAddr().String()
	testbed.Eventually(t, "the client's socket is its SIP connection", func() bool {
		connection, err := ua.TransportLayer().GetConnection("udp", local)
		return err == nil && connection != nil
	})
	calls := sipgo.NewDialogClientCache(client, contactAt(netip.MustParseAddrPort(local)))
	var call *sipgo.DialogClientSession
	return func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), testbed.Patience)
		defer cancel()
		if call == nil {
			if call, err = calls.Invite(ctx, contactAt(service).Address, nil); err == nil {
				err = call.WaitAnswer(ctx, sipgo.AnswerOptions{})
			}
			if err != nil {
				return "", err
			}
			return string(call.InviteResponse.Body()), call.Ack(ctx)
		}
		answer, err := call.Do(ctx, sip.NewRequest(sip.INFO, contactAt(service).Address))
		if err != nil {
			return "", err
		}
		if !answer.IsSuccess() {
			return "", errors.New(answer.StartLine())
		}
		return string(answer.Body()), nil
	}
}

// sipAgent opens a socket at a host, and makes an agent for it.
func sipAgent(t *testing.T, at *testbed.Host, port string) (net.PacketConn, *sipgo.UserAgent) {
	t.Helper()
	conn, err := at.ListenPacket(t.Context(), "udp", at.Addr4.String()+port)
	testbed.Check(t, err)
	ua, err := sipgo.NewUA()
	testbed.Check(t, err)
	return conn, ua
}

// contactAt is where further requests of a dialog are sent: endpoints name their Service.
func contactAt(addr netip.AddrPort) sip.ContactHeader {
	return sip.ContactHeader{Address: sip.Uri{Scheme: "sip", User: "who", Host: addr.Addr().String(), Port: int(addr.Port())}}
}

// serveSIP has a pod answer calls to a Service, and what is asked within them, with its name.
func serveSIP(t *testing.T, pod *testbed.Host, service netip.AddrPort) {
	t.Helper()
	conn, ua := sipAgent(t, pod, ":5060")
	client, err := sipgo.NewClient(ua)
	testbed.Check(t, err)
	calls := sipgo.NewDialogServerCache(client, contactAt(service))
	server, err := sipgo.NewServer(ua)
	testbed.Check(t, err)
	name := []byte(pod.Name)
	server.OnInvite(func(req *sip.Request, tx sip.ServerTransaction) {
		if call, err := calls.ReadInvite(req, tx); err == nil { // the client notices what is missing, here and below
			_ = call.Respond(sip.StatusOK, "OK", name)
		}
	})
	server.OnAck(func(req *sip.Request, tx sip.ServerTransaction) { _ = calls.ReadAck(req, tx) })
	server.OnInfo(func(req *sip.Request, tx sip.ServerTransaction) {
		response := sip.NewResponseFromRequest(req, sip.StatusOK, "OK", name)
		if _, err := calls.MatchDialogRequest(req); err != nil {
			response = sip.NewResponseFromRequest(req, sip.StatusCallTransactionDoesNotExists, "Call/Transaction Does Not Exist", nil)
		}
		_ = tx.Respond(response)
	})
	serve(t, func() { _ = errors.Join(conn.Close(), ua.Close()) }, func() error { return server.ServeUDP(conn) })
}
