package page

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
)

// The size of a chart in its own units.
const (
	chartWidth  = 240.0
	chartHeight = 40.0
)

// chart is a small line chart of the last 15 minutes.
type chart struct {
	ID    string // of the element, of this chart alone on the page
	Label string
	Last  string // the newest value
	Most  string // the highest one
	About string // the chart in a sentence, for those who do not see it
	Bad   bool   // there was something that should not be
	Line  string // of path data, as Area is
	Area  string
	Marks []mark
}

// mark is a hand-over in a chart.
type mark struct {
	X    float64
	Text string
}

// kind is what a chart shows of samples.
type kind struct {
	id, label string
	value     func(*history.Sample) float64
	unit      string
	rate      bool // it is of a second
	bad       bool // anything above 0 is bad
}

var kinds = []kind{
	{"open", "Open", func(s *history.Sample) float64 { return float64(s.Open) }, "", false, false},
	{"new", "New", func(s *history.Sample) float64 { return float64(s.New) }, "", true, false},
	{"in", "Bytes in", func(s *history.Sample) float64 { return float64(s.BytesIn) }, "B", true, false},
	{"out", "Bytes out", func(s *history.Sample) float64 { return float64(s.BytesOut) }, "B", true, false},
	{"failures", "Failures", func(s *history.Sample) float64 { return float64(s.Failures) }, "", true, true},
	{"refused", "Refused", func(s *history.Sample) float64 { return float64(s.Refused) }, "", true, true},
	{"changes", "Changes", func(s *history.Sample) float64 { return float64(s.Changes) }, "", false, false},
}

// point is a value at a time.
type point struct {
	at    time.Time
	value float64
}

// chartsOf draws charts of samples; the last kind, changes, is of the node only.
func chartsOf(samples []history.Sample, of []kind, now time.Time) (out []chart) {
	for _, k := range of {
		out = append(out, k.chart(samples, now))
	}
	return out
}

func (k *kind) chart(samples []history.Sample, now time.Time) chart {
	const window = history.Size * history.Every
	c := chart{ID: "chart-" + k.id, Label: k.label, Last: none}
	x := func(t time.Time) float64 { return chartWidth * (1 - float64(now.Sub(t))/float64(window)) }
	var points []point
	var most point
	for i := range samples {
		s := &samples[i]
		if now.Sub(s.Time) > window {
			continue
		}
		if s.TookOver {
			c.Marks = append(c.Marks, mark{x(s.Time), "Hand-over at " + clock(s.Time)})
		}
		if s.Seconds == 0 && k.id != "open" {
			continue // it counts nothing
		}
		p := point{s.Time, k.value(s)}
		if k.rate {
			p.value /= float64(s.Seconds)
		}
		if p.value > most.value || len(points) == 0 {
			most = p
		}
		points = append(points, p)
	}
	c.Bad = k.bad && most.value > 0
	write := func(n float64) string {
		if text := short(n, k.unit); k.rate {
			return text + "/s"
		} else {
			return text
		}
	}
	if len(points) == 0 {
		c.About = "There is nothing to show yet."
		return c
	}
	c.Last, c.Most = write(points[len(points)-1].value), write(most.value)
	c.About = fmt.Sprintf("The last 15 minutes: now %s, at most %s %s.", c.Last, c.Most, ago(now, most.at))
	if n := len(c.Marks); n > 0 {
		c.About += fmt.Sprintf(" Hand-overs: %d.", n)
	}
	c.draw(points, x, max(most.value, 1e-9))
	return c
}

// draw makes the lines, which end where no samples were taken for a time.
func (c *chart) draw(points []point, x func(time.Time) float64, most float64) {
	const top, gap = 3, 3 * history.Every
	var line, area strings.Builder
	y := func(i int) float64 { return chartHeight - 1 - points[i].value/most*(chartHeight-1-top) }
	for from := 0; from < len(points); {
		to := from + 1
		for to < len(points) && points[to].at.Sub(points[to-1].at) <= gap {
			to++
		}
		for i := from; i < to; i++ {
			command := "L"
			if i == from {
				command = "M"
				fmt.Fprintf(&area, "M%s %v", tenth(x(points[i].at)), chartHeight)
			} else if i < to-1 && y(i) == y(i-1) && y(i) == y(i+1) {
				continue
			}
			at := tenth(x(points[i].at)) + " " + tenth(y(i))
			line.WriteString(command + at)
			area.WriteString("L" + at)
		}
		fmt.Fprintf(&area, "L%s %vZ", tenth(x(points[to-1].at)), chartHeight)
		from = to
	}
	c.Line, c.Area = line.String(), area.String()
}

func tenth(n float64) string { return strconv.FormatFloat(n, 'f', 1, 64) }
