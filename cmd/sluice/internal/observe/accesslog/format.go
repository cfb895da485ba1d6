package accesslog

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-lb/sluice/lb"
)

// accepted is when the client came.
func (e *entry) accepted() time.Time { return e.at.Add(-max(e.Age, 0)) }

// counted reports whether bytes are.
func (e *entry) counted() bool { return e.Kernel == nil || e.Kernel.Counted }

// appendJSON appends an object.
func appendJSON(b []byte, e *entry) []byte {
	b = append(b, `{"time":"`...)
	b = e.accepted().UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z07:00")
	b = append(b, `","protocol":"`...)
	b = append(b, e.Protocol.String()...)
	b = append(b, '"')
	b = appendAddr(b, "client", e.Client)
	b = appendAddr(b, "address", e.Asked)
	if e.Service != (lb.ID{}) {
		b = appendText(b, "namespace", e.Service.Namespace)
		b = appendText(b, "service", e.Service.Name)
		b = appendText(b, "port", e.Service.Port)
	}
	b = appendAddr(b, "endpoint", e.Backend)
	b = appendText(b, "why", e.Why.String())
	b = append(b, `,"end":"`...)
	b = append(b, e.End.String()...)
	if reason := e.End.Reason(); reason != "" {
		b = append(append(b, `","reason":"`...), reason...)
	}
	b = append(b, '"')
	if e.Failed > 0 {
		b = append(b, `,"failed_attempts":`...)
		b = strconv.AppendInt(b, int64(e.Failed), 10)
	}
	for i, addr := range e.Tried {
		if i == 0 {
			b = append(b, `,"failed_endpoints":["`...)
		} else {
			b = append(b, `","`...)
		}
		b = addr.AppendTo(b)
	}
	if len(e.Tried) > 0 {
		b = append(b, `"]`...)
	}
	b = appendTime(b, "wait_ms", e.Wait)
	b = appendTime(b, "connect_ms", e.Connect)
	b = appendTime(b, "first_byte_ms", e.FirstByte)
	b = appendTime(b, "duration_ms", e.Age)
	if e.counted() {
		b = appendCount(b, "bytes_in", e.In)
		b = appendCount(b, "bytes_out", e.Out)
	}
	if k := e.Kernel; k != nil {
		if k.Counted {
			b = appendCount(b, "packets_in", k.PacketsIn)
			b = appendCount(b, "packets_out", k.PacketsOut)
		}
		return append(appendText(b, "data_path", k.Path), '}')
	}
	if e.Protocol == lb.TCP {
		b = appendCount(b, "retransmits", uint64(e.Retransmits))
	}
	b = append(b, `,"loop":`...)
	b = strconv.AppendInt(b, int64(e.Loop), 10)
	return append(b, '}')
}

func appendCount(b []byte, key string, n uint64) []byte {
	return strconv.AppendUint(append(append(append(b, `,"`...), key...), `":`...), n, 10)
}

func appendAddr(b []byte, key string, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return b
	}
	b = append(append(append(b, `,"`...), key...), `":"`...)
	return append(a.AppendTo(b), '"')
}

// appendText appends a text, which may be anything; empty: nothing.
func appendText(b []byte, key, text string) []byte {
	if text == "" {
		return b
	}
	b = append(append(append(b, `,"`...), key...), `":`...)
	if plain(text) {
		return append(append(append(b, '"'), text...), '"')
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return append(b, `""`...) // a string can be written
	}
	return append(b, quoted...)
}

// plain reports whether a text has only what names of Kubernetes have.
func plain(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !isPlain(r) }) < 0
}

func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r >= 'A' && r <= 'Z'
}

// appendTime appends a time in ms, unless it is not known.
func appendTime(b []byte, key string, d time.Duration) []byte {
	if d < 0 {
		return b
	}
	b = append(append(append(b, `,"`...), key...), `":`...)
	return strconv.AppendFloat(b, float64(d.Microseconds())/1000, 'f', -1, 64)
}

// appendTCPLog appends what HAProxy's option tcplog writes: client, time, address, backend/server, times in ms of
// waiting, connecting and all, bytes to the client, how it has ended, and counts, of which only the failed attempts
// are known.
func appendTCPLog(b []byte, e *entry) []byte {
	b = appendPlace(b, e.Client)
	b = append(b, " ["...)
	b = e.accepted().AppendFormat(b, "02/Jan/2006:15:04:05.000")
	b = append(b, "] "...)
	b = appendPlace(b, e.Asked)
	b = append(b, ' ')
	b = appendName(b, e.Service.Namespace)
	b = append(b, '_')
	b = appendName(b, e.Service.Name)
	if e.Service.Port != "" {
		b = append(b, '_')
		b = appendName(b, e.Service.Port)
	}
	b = append(b, '/')
	if e.Backend.IsValid() {
		b = e.Backend.AppendTo(b)
	} else {
		b = append(b, "<NOSRV>"...)
	}
	b = append(b, ' ')
	b = appendMS(b, e.Wait)
	b = append(b, '/')
	b = appendMS(b, e.Connect)
	b = append(b, '/')
	b = appendMS(b, e.Age)
	b = append(b, ' ')
	if e.counted() {
		b = strconv.AppendUint(b, e.Out, 10)
	} else {
		b = append(b, "-1"...)
	}
	b = append(b, ' ')
	b = append(b, e.End.String()...)
	b = append(b, " 0/0/0/0/"...)
	if len(e.Tried) > 0 {
		b = append(b, '+') // another endpoint was tried
	}
	b = strconv.AppendInt(b, int64(e.Failed), 10)
	return append(b, " 0/0"...)
}

// appendPlace appends an address, - if it is not known.
func appendPlace(b []byte, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return append(b, '-')
	}
	return a.AppendTo(b)
}

// appendMS appends a time in whole ms, -1 if it is not known.
func appendMS(b []byte, d time.Duration) []byte {
	if d < 0 {
		return append(b, "-1"...)
	}
	return strconv.AppendInt(b, d.Milliseconds(), 10)
}

// appendName appends a name without what would end a line or a field.
func appendName(b []byte, name string) []byte {
	for _, r := range name {
		if !isPlain(r) {
			r = '?'
		}
		b = utf8.AppendRune(b, r)
	}
	return b
}
