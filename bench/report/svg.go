package report

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// bar is one system's figure; low and high are its spread.
type bar struct {
	name      string
	v         float64
	low, high float64
}

type group struct {
	name string
	bars []bar
}

// Measures of a picture, in pixels.
const (
	barHeight  = 13
	groupGap   = 14
	labelWidth = 110
	plotWidth  = 520
	pageWidth  = labelWidth + plotWidth + 90
	topSpace   = 62
)

// colours by system; they differ also for people who see no red or no green
// (Okabe and Ito, 2008).
var colours = map[string]string{
	Ours: "#0072b2", "haproxy": "#e69f00", "nginx": "#009e73", "goroutines": "#cc79a7",
	"ipvs": "#d55e00", "dnat": "#999999", "direct": "#56b4e9", "queue": "#f0e442",
}

// colour returns that of a system, whose version may stand behind its name.
func colour(label string) string {
	system, _, _ := strings.Cut(label, " ")
	if c, ok := colours[system]; ok {
		return c
	}
	return "#444444"
}

// Picture is an SVG file.
type Picture struct {
	Name string // of the file
	SVG  string
}

// Pictures draws what the report has: the processor time of each system relative to
// Sluice's for TCP and UDP, memory, and curves.
func (r *Report) Pictures() []Picture {
	var out []Picture
	for _, p := range []struct {
		file, title, metric string
		prefixes            []string
		absolute            bool
	}{
		{"cpu-tcp.svg", "TCP: processor time of the proxy per unit of work (Sluice = 1, shorter is better)", CPU,
			[]string{"rr-", "short", "mixed"}, false},
		{"cpu-bulk.svg", "TCP bulk: processor time of the proxy per GB (Sluice = 1, shorter is better)", CPU,
			[]string{"bulk-"}, false},
		{"cpu-udp.svg", "UDP: processor time of the proxy per datagram (Sluice = 1, shorter is better)", CPU,
			[]string{"udp-", "dns"}, false},
		{"memory.svg", "Memory of the proxy per idle connection, bytes (shorter is better)", Memory, []string{"idle"},
			true},
	} {
		if groups := r.groups(p.metric, p.prefixes, p.absolute); len(groups) > 0 {
			out = append(out, Picture{p.file, draw(p.title, groups, !p.absolute)})
		}
	}
	return append(out, r.curves()...)
}

// groups collects the bars of the workloads whose names begin so.
func (r *Report) groups(metric string, prefixes []string, absolute bool) []group {
	var out []group
	for _, w := range r.Workloads {
		if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(w.Name, p) }) {
			continue
		}
		g := group{name: w.Name}
		for _, res := range r.Results {
			if res.Workload != w.Name || res.Metric != metric {
				continue
			}
			b := bar{r.label(res.System), res.Ratio, res.RatioMin, res.RatioMax}
			if absolute {
				b = bar{r.label(res.System), res.Median, res.Min, res.Max}
			}
			if !math.IsNaN(b.v) {
				g.bars = append(g.bars, b)
			}
		}
		if len(g.bars) > 1 {
			out = append(out, g)
		}
	}
	return out
}

// draw draws horizontal bars, with a line at 1 if they are ratios. Bars longer than
// the plot are cut off; their figures stand beside them.
func draw(title string, groups []group, ratios bool) string {
	bars, longest := 0, 0.0
	for _, g := range groups {
		bars += len(g.bars)
		for _, b := range g.bars {
			longest = max(longest, b.v)
		}
	}
	if ratios {
		longest = min(max(longest, 1.2), 3)
	}
	if longest <= 0 {
		longest = 1
	}
	height := topSpace + bars*barHeight + len(groups)*groupGap
	x := func(v float64) float64 { return labelWidth + plotWidth*min(max(v, 0), longest)/longest }
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="sans-serif" font-size="11" role="img">`+"\n", pageWidth, height)
	fmt.Fprintf(&s, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
		html.EscapeString(title))
	fmt.Fprintf(&s, `<text x="10" y="20" font-size="13" fill="#222222">%s</text>`+"\n", html.EscapeString(title))
	legend(&s, groups)
	if ratios {
		fmt.Fprintf(&s, `<path d="M%.1f %d V%d" stroke="#222222" stroke-dasharray="3 3"/>`+"\n", x(1), topSpace-6,
			height-groupGap/2)
	}
	y := topSpace
	for _, g := range groups {
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end" fill="#222222">%s</text>`+"\n", labelWidth-8,
			y+len(g.bars)*barHeight/2+4, html.EscapeString(g.name))
		for _, b := range g.bars {
			fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, labelWidth, y,
				x(b.v)-labelWidth, barHeight-3, colour(b.name))
			if !math.IsNaN(b.low) && !math.IsNaN(b.high) {
				fmt.Fprintf(&s, `<path d="M%.1f %d H%.1f" stroke="#222222" stroke-width="1"/>`, x(b.low),
					y+(barHeight-3)/2, x(b.high))
			}
			label := figure(b.v)
			if ratios {
				label = times(b.v)
			}
			fmt.Fprintf(&s, `<text x="%.1f" y="%d" fill="#222222" stroke="#ffffff" stroke-width="3" `+
				`paint-order="stroke">%s</text>`+"\n", max(x(b.v), x(b.high))+5, y+barHeight-4, label)
			y += barHeight
		}
		y += groupGap
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// legend names the systems, in the order in which they appear.
func legend(s *strings.Builder, groups []group) {
	var names []string
	for _, g := range groups {
		for _, b := range g.bars {
			if !slices.Contains(names, b.name) {
				names = append(names, b.name)
			}
		}
	}
	for i, name := range names {
		x, y := labelWidth+i%4*150, 28+i/4*14
		fmt.Fprintf(s, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/>`, x, y, colour(name))
		fmt.Fprintf(s, `<text x="%d" y="%d" fill="#222222">%s</text>`+"\n", x+14, y+9, html.EscapeString(name))
	}
}
