package api

import (
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/nearest"
	"github.com/sluice-lb/sluice/lb"
)

// HasPort reports whether a service port is meant by a name or a number, which is that of one of its addresses.
func HasPort(of *lb.Service, port string) bool {
	if of.Port == port {
		return true
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && slices.ContainsFunc(of.Addresses, func(a lb.Address) bool {
		return a.Addr.Port() == uint16(number)
	})
}

// ofPort returns what tells whether a service port is one that a request names: all are, if it names no port.
func (s *Sources) ofPort(q url.Values) func(lb.ID) bool {
	if q.Get("port") == "" {
		return func(lb.ID) bool { return true }
	}
	ids := s.ids(q)
	return func(id lb.ID) bool { return slices.Contains(ids, id) }
}

// exists returns an error if a request is about a namespace, a Service or a port of it that there is not.
func (s *Sources) exists(q url.Values) error {
	namespace, name, port := q.Get("namespace"), q.Get("name"), q.Get("port")
	if namespace+name == "" || len(s.ids(q)) > 0 {
		return nil
	}
	table := s.LB.Table()
	of := func(field func(*lb.Service) string, only func(*lb.Service) bool) iter.Seq[string] {
		return func(yield func(string) bool) {
			for i := range table.Len() {
				if s := table.At(i); only(s) && !yield(field(s)) {
					return
				}
			}
		}
	}
	here := func(s *lb.Service) bool { return namespace == "" || s.Namespace == namespace }
	this := func(s *lb.Service) bool { return here(s) && s.Name == name }
	missing := func(what string, near string) error {
		text := "there is no " + what
		if near != "" {
			text += ": did you mean " + near + "?"
		}
		return &Error{http.StatusNotFound, text}
	}
	full := name
	if namespace != "" {
		full = namespace + "/" + name
	}
	without := url.Values{"namespace": {namespace}, "name": {name}}
	switch {
	case port != "" && len(s.ids(without)) > 0:
		return missing(fmt.Sprintf("port %s of Service %s", port, full),
			nearest.Of(port, of(func(s *lb.Service) string { return s.Port }, this)))
	case len(s.ids(url.Values{"namespace": {namespace}})) == 0:
		all := func(*lb.Service) bool { return true }
		return missing("Service in namespace "+namespace,
			nearest.Of(namespace, of(func(s *lb.Service) string { return s.Namespace }, all)))
	}
	return missing("Service "+full, nearest.Of(name, of(func(s *lb.Service) string { return s.Name }, here)))
}

// none reports whether nothing was found.
func (l List[T]) none() bool { return len(l.Items) == 0 && l.Continue == "" }

func (out Talkers) none() bool { return len(out.Items) == 0 }
