package api

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// usualPage and largestPage are how many items a page of a list has. It may have fewer, or none, and go on: mostLooked
// bounds how many service ports and endpoints are looked at for one, since few may be what is asked for, and each look
// keeps changes waiting.
const (
	usualPage   = 500
	largestPage = 1000
	mostLooked  = 10_000
)

// listParams are the parameters of lists of Services and of what they have.
var listParams = []string{"namespace", "name", "port", "limit", "continue"}

// cursor is where a page begins: at this service port, or the one after it if that has gone, and there at an item.
type cursor struct {
	ID lb.ID
	At int
}

func (c cursor) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		return "" // strings and numbers can be written
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// number returns a parameter that is a number.
func number(q url.Values, name string, usual, most uint64) (uint64, error) {
	text := q.Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		return 0, refuse("%s %q is not a number from 0 to %d", name, text, most)
	}
	return n, nil
}

// pageOf makes a page of the service ports that a request is about: add appends what there is of one from an item on,
// as long as the page has fewer than limit items, and returns where to go on; 0: there is no more of it.
func pageOf[T any](s *Sources, q url.Values,
	add func(to []T, v *balancer.View, at, limit int) ([]T, int)) (any, error) {
	n, err := number(q, "limit", usualPage, largestPage)
	if err != nil {
		return nil, err
	}
	limit := max(int(n), 1)
	var from cursor
	if text := q.Get("continue"); text != "" {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		if err == nil {
			err = json.Unmarshal(raw, &from)
		}
		if err != nil || from.At < 0 {
			return nil, refuse("continue %q is none that was answered", text)
		}
	}
	page, looked := List[T]{Items: []T{}}, 0
	for _, id := range s.ids(q) {
		order := id.Compare(from.ID)
		if order < 0 {
			continue
		}
		at := 0
		if order == 0 {
			at = from.At
		}
		if len(page.Items) >= limit || looked >= mostLooked {
			page.Continue = cursor{ID: id}.String()
			break
		}
		v, ok := s.LB.Counters().View(id)
		if !ok {
			continue // it has gone meanwhile
		}
		looked += 1 + len(v.Stats.Backends)
		if page.Items, at = add(page.Items, &v, at, limit); at > 0 {
			page.Continue = cursor{id, at}.String()
			break
		}
	}
	return page, nil
}

// ids returns the service ports that a request is about, in order: those of a Service or of a namespace, and of these
// the ones with a port of a name or number.
func (s *Sources) ids(q url.Values) []lb.ID {
	namespace, name, port := q.Get("namespace"), q.Get("name"), q.Get("port")
	table := s.LB.Table()
	var ids []lb.ID
	for i := range table.Len() {
		of := table.At(i)
		if (namespace == "" || of.Namespace == namespace) && (name == "" || of.Name == name) &&
			(port == "" || HasPort(of, port)) {
			ids = append(ids, of.ID)
		}
	}
	if !slices.IsSortedFunc(ids, lb.ID.Compare) { // what is about to go comes last
		slices.SortFunc(ids, lb.ID.Compare)
	}
	return ids
}
