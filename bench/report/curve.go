package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Point is one figure of a line.
type Point struct{ X, Y float64 }

// Line is what a curve shows of one system.
type Line struct {
	Name   string // the system, and what else tells the line from others
	Points []Point
}

// Measures of a curve, in pixels.
const (
	curveHeight = 260
	curveLeft   = 70
	curveRight  = 200 // for the names, at the ends of the lines
	nameHeight  = 13
)

// Curve draws lines over x, both axes by powers of ten. It leaves out points that have no logarithm, and lines of less
// than two points. It returns "" if no line is left.
func Curve(title, x, y string, lines []Line) string {
	var all []Point
	var drawn []Line
	for _, l := range lines {
		l.Points = slices.DeleteFunc(slices.Clone(l.Points), func(p Point) bool {
			return !(p.X > 0 && p.Y > 0) || math.IsInf(p.X, 0) || math.IsInf(p.Y, 0)
		})
		slices.SortStableFunc(l.Points, func(a, b Point) int { return cmp.Compare(a.X, b.X) })
		if len(l.Points) > 1 {
			drawn = append(drawn, l)
			all = append(all, l.Points...)
		}
	}
	if len(drawn) == 0 {
		return ""
	}
	c := curve{
		x: newAxis(all, func(p Point) float64 { return p.X }, curveLeft, pageWidth-curveRight),
		y: newAxis(all, func(p Point) float64 { return p.Y }, topSpace+curveHeight, topSpace),
	}
	height := topSpace + curveHeight + 45
	fmt.Fprintf(&c.s, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="sans-serif" font-size="11" role="img">`+"\n", pageWidth, height)
	fmt.Fprintf(&c.s, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
		html.EscapeString(title))
	fmt.Fprintf(&c.s, `<text x="10" y="20" font-size="13" fill="#222222">%s</text>`+"\n", html.EscapeString(title))
	c.text(10, topSpace-16, "start", y)
	c.text((c.x.from+c.x.to)/2, float64(height-8), "middle", x)
	c.grid()
	c.draw(drawn)
	c.s.WriteString("</svg>\n")
	return c.s.String()
}

// axis maps figures to pixels.
type axis struct {
	least, most int // powers of ten
	from, to    float64
}

func newAxis(points []Point, of func(Point) float64, from, to float64) axis {
	least, most := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		least, most = min(least, of(p)), max(most, of(p))
	}
	a := axis{int(math.Floor(math.Log10(least))), int(math.Ceil(math.Log10(most))), from, to}
	if a.most == a.least {
		a.most++
	}
	return a
}

func (a axis) at(v float64) float64 {
	return a.from + (a.to-a.from)*(math.Log10(v)-float64(a.least))/float64(a.most-a.least)
}

// curve is one that is being drawn.
type curve struct {
	s    strings.Builder
	x, y axis
}

func (c *curve) text(x, y float64, anchor, words string) {
	fmt.Fprintf(&c.s, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222222">%s</text>`+"\n", x, y, anchor,
		html.EscapeString(words))
}

// grid draws a line at each power of ten.
func (c *curve) grid() {
	path := func(x1, y1, x2, y2 float64) {
		fmt.Fprintf(&c.s, `<path d="M%.1f %.1f L%.1f %.1f" stroke="#dddddd"/>`, x1, y1, x2, y2)
	}
	for n := c.x.least; n <= c.x.most; n++ {
		at := c.x.at(math.Pow10(n))
		path(at, c.y.from, at, c.y.to)
		c.text(at, c.y.from+16, "middle", power(n))
	}
	for n := c.y.least; n <= c.y.most; n++ {
		at := c.y.at(math.Pow10(n))
		path(c.x.from, at, c.x.to, at)
		c.text(c.x.from-6, at+4, "end", power(n))
	}
}

// power writes a power of ten with its thousands apart.
func power(n int) string {
	text := strconv.FormatFloat(math.Pow10(n), 'f', -1, 64)
	for i := len(text) - 3; n > 0 && i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// dashes tell lines of one system apart.
var dashes = []string{"", "6 3", "2 2", "8 3 2 3"}

// draw draws the lines, with their names where they end. Names that would cover each other move down.
func (c *curve) draw(lines []Line) {
	slices.SortStableFunc(lines, func(a, b Line) int { // the highest first
		return cmp.Compare(b.Points[len(b.Points)-1].Y, a.Points[len(a.Points)-1].Y)
	})
	seen := make(map[string]int)
	free := 0.0
	for _, l := range lines {
		tone := colour(l.Name)
		var d strings.Builder
		for i, p := range l.Points {
			fmt.Fprintf(&d, "%c%.1f %.1f ", "ML"[min(i, 1)], c.x.at(p.X), c.y.at(p.Y))
			fmt.Fprintf(&c.s, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, c.x.at(p.X), c.y.at(p.Y), tone)
		}
		fmt.Fprintf(&c.s, `<path d="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n",
			strings.TrimSpace(d.String()), tone, dashes[seen[tone]%len(dashes)])
		seen[tone]++
		end := l.Points[len(l.Points)-1]
		y := max(c.y.at(end.Y)+4, free)
		free = y + nameHeight
		fmt.Fprintf(&c.s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, c.x.to+10, y-4, tone)
		c.text(c.x.to+18, y, "start", l.Name+": "+figure(end.Y))
	}
}

// curves draws what the report has over numbers of Services and of connections.
func (r *Report) curves() []Picture {
	var out []Picture
	add := func(file, title, x, y string, lines []Line) {
		if svg := Curve(title, x, y, lines); svg != "" {
			out = append(out, Picture{file, svg})
		}
	}
	family := "connections-"
	if !slices.ContainsFunc(r.Workloads, func(w Workload) bool { return strings.HasPrefix(w.Name, family) }) {
		family = "rr-"
	}
	var lines []Line
	for _, s := range r.Systems {
		if s.Name != Queue { // whose process only decides who serves a connection
			lines = append(lines, Line{s.Label(), r.points(family, s.Name, CPU)})
		}
	}
	add("connections.svg", "Processor time of the proxy for a request, over open connections", "connections",
		"us a request", lines)
	lines = nil
	for _, metric := range []string{"ready", "change", "first byte", "resident"} {
		l := Line{Points: r.points("services-", Ours, metric)}
		if len(l.Points) > 0 {
			l.Name = metric + ", " + r.unitOf("services-", metric)
		}
		lines = append(lines, l)
	}
	add("services.svg", "What the number of Services costs: "+r.label(Ours), "TCP Services of 10 endpoints",
		"see the names", lines)
	return out
}

// points returns the medians of a metric in the workloads whose names are a family's and a number.
func (r *Report) points(family, system, metric string) (points []Point) {
	for _, res := range r.Results {
		text, ok := strings.CutPrefix(res.Workload, family)
		n, err := strconv.Atoi(text)
		if ok && err == nil && res.System == system && res.Metric == metric && !res.Invalid {
			points = append(points, Point{float64(n), res.Median})
		}
	}
	return points
}

// unitOf returns the unit of a metric in a family of workloads.
func (r *Report) unitOf(family, metric string) string {
	for _, res := range r.Results {
		if strings.HasPrefix(res.Workload, family) && res.Metric == metric {
			return res.Unit
		}
	}
	return ""
}
