package page

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	none        = "–"      // stands for a number that is not known
	nonBreaking = '\u00a0' // a space where no line ends
)

// count writes a whole number with its thousands apart.
func count(n any) string {
	digits := fmt.Sprint(n)
	sign := ""
	if rest, ok := strings.CutPrefix(digits, "-"); ok {
		sign, digits = "-", rest
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

// bytesOf writes how many bytes in three digits: 1.23 MB.
func bytesOf(n uint64) string { return short(float64(n), "B") }

// short writes a number that is not negative in about three digits, with a prefix of the unit.
func short(n float64, unit string) string {
	prefixes := []string{"", "k", "M", "G", "T", "P", "E"}
	at := 0
	for n >= 999.5 && at < len(prefixes)-1 {
		n /= 1000
		at++
	}
	decimals := 0
	switch {
	case n < 0.095 && n > 0:
		decimals, n = 2, max(n, 0.01)
	case n < 9.95 && (at > 0 || n != float64(int(n))):
		decimals = 1
	}
	text := strconv.FormatFloat(n, 'f', decimals, 64)
	if unit+prefixes[at] == "" {
		return text
	}
	return text + string(nonBreaking) + prefixes[at] + unit
}

// ago writes how long before now a time was.
func ago(now time.Time, then any) string {
	t, ok := then.(time.Time)
	if at, isAt := then.(*time.Time); isAt && at != nil {
		t, ok = *at, true
	}
	if !ok || t.IsZero() {
		return "never"
	}
	d := now.Sub(t)
	if d < time.Second {
		return "now"
	}
	return span(now, t) + " ago"
}

// span writes the time between two in the unit that says enough.
func span(now, then time.Time) string {
	d := now.Sub(then)
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d\u00a0s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d\u00a0min", int(d.Minutes()))
	case d < day:
		return fmt.Sprintf("%d\u00a0h %d\u00a0min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d\u00a0d %d\u00a0h", int(d/day), int(d%day/time.Hour))
}

// clock writes a time whole, for those who compare it with a log.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// stamp writes a time for programs.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// cut returns text of at most so many characters, without its middle if it is longer.
func cut(text string, most int) string {
	all := []rune(text)
	if len(all) <= most {
		return text
	}
	half := (most - 1) / 2
	return string(all[:most-1-half]) + "…" + string(all[len(all)-half:])
}
