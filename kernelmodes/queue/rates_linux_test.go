package queue

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

var (
	rates   = flag.String("rates", "500", "new flows in a second for TestRates, as 10000,30000")
	seconds = flag.Float64("seconds", 0.4, "how long each rate of TestRates lasts")
)

// payload is what a datagram of TestRates has: when it was sent, by the clock of the host.
const payload = 8

// flood is a program that sends a datagram for each of so many new flows, at a rate that does not depend on anything
// else, from the addresses after a first one, and prints how late it was at the most.
func flood(args []string) int {
	from, to := netip.MustParseAddr(args[0]), netip.MustParseAddrPort(args[1])
	rate, _ := strconv.Atoi(args[2])
	count, _ := strconv.Atoi(args[3])
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	const ip, udp, ports = 20, 8, 40000
	b := make([]byte, ip+udp+payload)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	copy(b[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[ip+2:], to.Port())
	binary.BigEndian.PutUint16(b[ip+4:], udp+payload)
	sa := &unix.SockaddrInet4{Addr: to.Addr().As4()}
	begun, late := time.Now(), time.Duration(0)
	for i := range count {
		if i%ports == 0 {
			from = from.Next()
			copy(b[12:], from.AsSlice())
		}
		binary.BigEndian.PutUint16(b[ip:], uint16(20000+i%ports))
		at := begun.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if wait := time.Until(at); wait > 0 {
			time.Sleep(wait) // the rate is what is asked for
		} else {
			late = max(late, -wait)
		}
		binary.NativeEndian.PutUint64(b[ip+udp:], uint64(time.Now().UnixNano()))
		if err := unix.Sendto(fd, b, 0, sa); err != nil && !errors.Is(err, unix.ENOBUFS) {
			fmt.Println(err)
			return 1
		}
	}
	fmt.Println(late.Round(10*time.Microsecond), time.Since(begun).Round(time.Millisecond))
	return 0
}

// sink is a program that receives datagrams until SIGTERM, and prints how long they took from when they were sent until
// the kernel had them.
func sink(args []string) int {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	at := netip.MustParseAddrPort(args[0])
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var took []time.Duration
	b, oob := make([]byte, 64), make([]byte, 64)
	fmt.Println("ready")
	for ended := false; ; {
		n, m, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN && !ended {
			select {
			case <-stop:
				ended = true // once what has come is read
			case <-time.After(time.Millisecond): // to be woken would take the time of the packet that does it
			}
			continue
		}
		if err != nil {
			break
		}
		control, err := unix.ParseSocketControlMessage(oob[:m])
		if err != nil || len(control) == 0 || n < payload {
			continue
		}
		data := control[0].Data
		got := int64(binary.NativeEndian.Uint64(data))*1e9 + int64(binary.NativeEndian.Uint64(data[8:]))
		took = append(took, time.Duration(got-int64(binary.NativeEndian.Uint64(b))))
	}
	slices.Sort(took)
	fmt.Printf("%d arrived; p50 %v, p99 %v, p99.9 %v, longest %v\n", len(took), part(took, 0.5), part(took, 0.99),
		part(took, 0.999), part(took, 1))
	return 0
}

// part returns what a part of some sorted times are not above.
func part(sorted []time.Duration, of float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(of*float64(len(sorted))))].Round(100 * time.Nanosecond)
}

// took has how long verdicts took, by tenths of a microsecond: from when packets were read until the kernel had taken
// the verdicts on all that were decided together, divided by how many these are.
type took [10000]atomic.Uint64

func (v *took) add(packets int, d time.Duration) {
	each := d / time.Duration(packets) / (100 * time.Nanosecond)
	v[min(int(each), len(v)-1)].Add(uint64(packets))
}

// part is that of the function of this name.
func (v *took) part(of float64) time.Duration {
	all, n := uint64(0), uint64(0)
	for i := range v {
		all += v[i].Load()
	}
	for i := range v {
		if n += v[i].Load(); n > 0 && float64(n) >= of*float64(all) {
			return time.Duration(i) * 100 * time.Nanosecond
		}
	}
	return 0
}

// cpu returns how much this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	testbed.Check(t, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestRates: at a rate that does not wait a server chooses for each new flow that finds room in a queue, and the kernel
// for the rest, and for all without one. It logs how long first packets take from client to endpoint, so that the
// difference is what asking costs a flow, and how long verdicts alone take, without the time to wake who reads: at
// -rates 10000,30000 -seconds 2, on an idle machine.
func TestRates(t *testing.T) {
	verdicts := new(took)
	n := newNodeOf(t, testbed.Config{Pods: 2}, Mask, verdicts.add) // the second asks: what comes from outside is masqueraded
	s := lab.Simple("dns", testbed.VIP(false, 1).String(), 53, lb.UDP, lab.Backend(n.Pods[0], false, 8053))
	n.Sync(s)
	one := func(rate int, answered bool) {
		t.Helper()
		n.Node.Run(t, "conntrack", "-F")
		n.RequestReading() // packets that were dropped have no entry that ends
		testbed.Eventually(t, "flows have ended", func() bool { return n.Stats().Flows.Known == 0 })
		before := n.Stats()
		clear(verdicts[:])
		receiver, received := run(t, n.Pods[0], "sink", s.Backends[0].Addr.String())
		if got := received(); got != "ready" {
			t.Fatal(got)
		}
		count := int(float64(rate) * *seconds)
		sender, sent := run(t, n.Pods[1], "flood", n.Pods[1].Addr4.String(), s.Addresses[0].Addr.String(), strconv.Itoa(rate),
			strconv.Itoa(count))
		used := cpu(t)
		late := sent()
		testbed.Check(t, sender.Wait(t.Context()))
		receiver.Signal(syscall.SIGTERM)
		got, after := received(), n.Stats()
		used = cpu(t) - used
		testbed.Check(t, receiver.Wait(t.Context()))
		t.Logf("%d flows/s, %d flows: %s; chosen %d, missed %d; verdicts p50 %v, p99 %v; server %v of a core for each; "+
			"sender late by %s at most", rate, count, got, after.Chosen-before.Chosen,
			after.Queues.Missed-before.Queues.Missed, verdicts.part(0.5), verdicts.part(0.99), used/time.Duration(count), late)
		chosen, arrived := after.Chosen-before.Chosen, 0
		if _, err := fmt.Sscan(got, &arrived); err != nil || arrived == 0 || arrived > count ||
			answered != (chosen > 0) || chosen > uint64(count) {
			t.Errorf("of %d flows %q, %d chosen, with a server: %v", count, got, chosen, answered)
		}
	}
	all := func(answered bool) {
		for _, text := range strings.Split(*rates, ",") {
			rate, err := strconv.Atoi(text)
			testbed.Check(t, err)
			one(rate, answered)
		}
	}
	t.Log("with a server:")
	all(true)
	testbed.Check(t, n.Server.Close())
	t.Log("without one:")
	all(false)
}
