package page

import (
	"fmt"
	"strconv"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

const (
	// pictures is of how many ports the page of a Service has a picture, shownAddresses and shownEndpoints how many
	// boxes each has.
	pictures       = 4
	shownAddresses = 4
	shownEndpoints = 8

	// Sizes, in units of which a screen has one to a pixel: of boxes, and where the columns begin.
	boxHeight, boxGap        = 40.0, 8.0
	addressAt, addressWidth  = 0.0, 230.0
	pathAt, pathWidth        = 330.0, 230.0
	endpointAt, endpointWide = 690.0, 290.0

	thin, thick = 1.25, 4 // lines, and what all connections add to one
)

// picture shows where a connection to a port goes: addresses, the data path, endpoints.
type picture struct {
	ID, Title, About string
	Width, Height    float64
	Boxes            []box
	Edges            []edge
}

// box has two lines of text.
type box struct {
	X, Y, Width, Height float64
	Class               string
	Head, Text          string
	Whole               string // what both say, in full
	Share               string // of new connections; empty: it is not known
}

// edge leads from one box to another.
type edge struct {
	Class, Line string
	Wide        float64
}

// draw makes the pictures of the first ports.
func (s *servicePage) draw(p *pages, status *api.Status) {
	for i := range s.Ports[:min(len(s.Ports), pictures)] {
		one := &s.Ports[i]
		one.Picture = pictureOf(i, one, p.api.Endpoints(one.ID, rows), status)
	}
}

// pictureOf draws a port with the first of its endpoints.
func pictureOf(number int, of *port, endpoints []api.Endpoint, status *api.Status) *picture {
	left, right := addressBoxes(of), endpointBoxes(of, endpoints)
	high := max(len(left), len(right), 2)
	p := &picture{ID: "picture-" + strconv.Itoa(number), Title: "Where a connection to " + of.Label + " goes",
		Width: endpointAt + endpointWide + 2, Height: float64(high)*(boxHeight+boxGap) + 2}
	middle := p.Height/2 - boxHeight/2
	path := box{X: pathAt, Y: middle, Width: pathWidth, Class: "path"}
	path.say(pathName(of, status), of.Path.Why, 32)
	if of.Path.Fallback != "" {
		path.Class = "path partial"
		path.say(pathName(of, status), "not "+of.Path.Requested+": "+of.Path.Fallback, 32)
	}
	place(left, p.Height)
	place(right, p.Height)
	for _, b := range left {
		p.Edges = append(p.Edges, edge{"well", curve(b.X+b.Width, b.Y, pathAt, middle), thin})
	}
	for _, b := range right {
		p.Edges = append(p.Edges, edge{b.edge, curve(pathAt+pathWidth, middle, b.X, b.Y), thin + thick*b.part})
	}
	for _, b := range left {
		p.Boxes = append(p.Boxes, b.box)
	}
	p.Boxes = append(p.Boxes, path)
	for _, b := range right {
		p.Boxes = append(p.Boxes, b.box)
	}
	p.About = fmt.Sprintf("Of %s, %s, connections take path %s to %d of %d endpoints; the tables below say the same.",
		of.Label, plural(len(of.Addresses), "address", "addresses"), pathName(of, status), of.Eligible,
		of.Service.Endpoints)
	return p
}

// joined is a box with what leads to it.
type joined struct {
	box
	edge string
	part float64 // of new connections
}

// say fills in the lines, cut to so many characters.
func (b *box) say(head, text string, most int) {
	b.Height, b.Head, b.Text, b.Whole = boxHeight, cut(head, most), cut(text, most*5/4), head+" "+text
}

// place puts boxes above each other, in the middle of the picture.
func place(boxes []joined, height float64) {
	y := (height - float64(len(boxes))*(boxHeight+boxGap) + boxGap) / 2
	for i := range boxes {
		boxes[i].Y = y + float64(i)*(boxHeight+boxGap)
	}
}

// curve leads from the right of a box to the left of another one.
func curve(x1, y1, x2, y2 float64) string {
	y1, y2 = y1+boxHeight/2, y2+boxHeight/2
	half := (x2 - x1) / 2
	return fmt.Sprintf("M%.0f %.1fC%.0f %.1f %.0f %.1f %.0f %.1f", x1, y1, x1+half, y1, x2-half, y2, x2, y2)
}

func addressBoxes(of *port) (out []joined) {
	for _, a := range of.Addresses[:min(len(of.Addresses), shownAddresses)] {
		b := joined{box: box{X: addressAt + 1, Width: addressWidth, Class: "address"}}
		text := a.Kind
		if a.Local {
			text += ", endpoints of this node"
		}
		if len(a.Sources) > 0 {
			text += ", " + plural(len(a.Sources), "source range", "source ranges")
		}
		b.say(a.Address, text, 32)
		out = append(out, b)
	}
	if more := len(of.Addresses) - len(out); more > 0 {
		b := joined{box: box{X: addressAt + 1, Width: addressWidth, Class: "more"}}
		b.say(plural(more, "more address", "more addresses"), "in the table below", 32)
		out = append(out, b)
	}
	return out
}

func endpointBoxes(of *port, endpoints []api.Endpoint) (out []joined) {
	weights := 0
	for _, e := range endpoints {
		if e.Eligible {
			weights += int(e.Weight)
		}
	}
	for _, e := range endpoints[:min(len(endpoints), shownEndpoints)] {
		b := joined{box: box{X: endpointAt, Width: endpointWide, Class: classes[e.State]}, edge: "none"}
		b.say(e.Address, fmt.Sprintf("%s, %s open", e.State, countersOf(e.Counted, e.Kernel).open), 36)
		if e.Eligible {
			b.edge = "well"
			if weights > 0 && of.Service.Endpoints <= len(endpoints) {
				b.part = float64(e.Weight) / float64(weights)
				b.Share = fmt.Sprintf("%.0f\u00a0%%", 100*b.part)
			}
		} else if e.Reason != "" {
			b.say(e.Address, e.Reason, 36)
		}
		out = append(out, b)
	}
	switch more := of.Service.Endpoints - len(out); {
	case len(out) == 0:
		b := joined{box: box{X: endpointAt, Width: endpointWide, Class: "down"}, edge: "none"}
		b.say("no endpoint", "for new connections", 36)
		out = append(out, b)
	case more > 0:
		b := joined{box: box{X: endpointAt, Width: endpointWide, Class: "more"}, edge: "none"}
		b.say(plural(more, "more endpoint", "more endpoints"), "in the table below", 36)
		out = append(out, b)
	}
	return out
}

// pathName names the data path of a port, and what brings connections there.
func pathName(of *port, status *api.Status) string {
	switch {
	case of.Path.Effective == "":
		return "not applied yet"
	case of.Path.Effective == "userspace" && status.PacketFilter != nil:
		return "userspace, by " + status.PacketFilter.Name
	}
	return of.Path.Effective
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}
