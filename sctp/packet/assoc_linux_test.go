package packet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/sctp/wire"
)

// A script is lines of which side sends which chunk with which tag, and what is to become
// of it: "C INIT =7" is the client's INIT with initiate tag 7, "B ABORT 7T" an ABORT
// of the backend with tag 7 and the T bit. After "->" come the verdict and the
// phase. OPEN is what opens an association with the tags 7 and 9.
var scripts = map[string]string{
	"life": `
		C INIT =7          -> pass opening
		OPEN
		C DATA 9           -> pass established
		B DATA 7           -> pass established
		C SHUTDOWN 9       -> pass ending
		B SHUTDOWNACK 7    -> pass ending
		C COMPLETE 9       -> pass ended
		B SHUTDOWNACK 7    -> pass ended
		C COMPLETE 7T      -> pass ended
		C INIT =8          -> fresh ended`,
	"wrong tags": `
		C INIT =7          -> pass opening
		C DATA 9           -> unexpected opening
		B DATA 7           -> unexpected opening
		B INITACK 8 =9     -> badTag opening
		B INIT =1          -> unexpected opening
		B INITACK 7 =9     -> pass answered
		C DATA 9           -> badTag answered
		C COOKIEECHO 8     -> badTag answered
		B COOKIEACK 7      -> badTag answered
		C INITACK 9 =1     -> unexpected answered
		C COOKIEECHO 9     -> pass answered
		B COOKIEACK 9      -> badTag answered
		B COOKIEACK 7      -> pass established
		C DATA 7           -> badTag established
		B DATA 9           -> badTag established
		C ABORT 7          -> badTag established
		B ABORT 9          -> badTag established
		C SHUTDOWN 7       -> badTag established
		C COMPLETE 5T      -> badTag established
		B INITACK 7 =1     -> badTag established
		B INIT =1          -> unexpected established`,
	"refusal": `
		C INIT =7          -> pass opening
		B ABORT 8          -> unexpected opening
		B ABORT 7          -> refused opening`,
	"aborts": `
		OPEN
		B ABORT 9T         -> pass ended
		C ABORT 9          -> pass ended`,
	"an answer that was lost": `
		C INIT =7          -> pass opening
		B INITACK 7 =8     -> pass answered
		C INIT =7          -> pass answered
		B INITACK 7 =9     -> pass answered
		C COOKIEECHO 9     -> pass answered
		C COOKIEECHO 9     -> pass answered
		B COOKIEACK 7      -> pass established
		C COOKIEECHO 9     -> pass established
		B COOKIEACK 7      -> pass established
		C DATA 8           -> badTag established`,
	"another attempt of the client": `
		C INIT =7          -> pass opening
		B INITACK 7 =9     -> pass answered
		C INIT =6          -> pass answered
		B INITACK 7 =10    -> badTag answered
		B INITACK 6 =11    -> pass answered
		C COOKIEECHO 11    -> pass answered
		B COOKIEACK 6      -> pass established`,
	"a stale cookie": `
		C INIT =7          -> pass opening
		B INITACK 7 =9     -> pass answered
		C COOKIEECHO 9     -> pass answered
		B ERROR 7          -> pass answered
		C INIT =7          -> pass answered
		B INITACK 7 =10    -> pass answered
		C COOKIEECHO 10    -> pass answered
		B COOKIEACK 7      -> pass established
		C DATA 10          -> pass established
		C DATA 9           -> badTag established`,
	"the client starts again": `
		OPEN
		C INIT =17         -> pass established
		C DATA 9           -> pass established
		B DATA 7           -> pass established
		B INITACK 17 =19   -> pass established
		C DATA 19          -> badTag established
		B DATA 17          -> badTag established
		C COOKIEECHO 19    -> pass established
		B COOKIEACK 17     -> pass established
		C DATA 19          -> pass established
		B DATA 17          -> pass established
		C DATA 9           -> badTag established
		B DATA 7           -> badTag established`,
	"another host asks in the client's name": `
		OPEN
		C INIT =17         -> pass established
		B INITACK 17 =19   -> pass established
		C ABORT 19         -> badTag established
		B ABORT 17         -> pass established
		C DATA 9           -> pass established
		B DATA 7           -> pass established`,
	"an INIT sent again while a busy backend answers": `
		C INIT =7          -> pass opening
		B INITACK 7 =9     -> pass answered
		C INIT =7          -> pass answered
		later
		C INIT =7          -> pass answered
		C COOKIEECHO 9     -> pass answered
		B COOKIEACK 7      -> pass established`,
	"a backend that goes when it has answered": `
		C INIT =7          -> pass opening
		B INITACK 7 =9     -> pass answered
		C INIT =7          -> pass answered
		later
		later
		later
		later
		later
		later
		C INIT =7          -> fresh answered`,
	"a backend that has lost the association and refuses a new one": `
		OPEN
		C INIT =17         -> pass established
		B ABORT 18         -> badTag established
		B ABORT 17         -> unexpected established
		C DATA 9           -> pass established
		C INIT =17         -> fresh established`,
	"a backend that has gone": `
		OPEN
		C INIT =17         -> pass established
		C INIT =17         -> pass established
		later
		C INIT =17         -> fresh established`,
}

func TestAssoc(t *testing.T) {
	names := map[string]wire.Kinds{
		"INIT": wire.KindInit, "INITACK": wire.KindInitAck,
		"COOKIEECHO": wire.KindCookieEcho, "COOKIEACK": wire.KindCookieAck, "DATA": 0,
		"SHUTDOWN": wire.KindShutdown, "SHUTDOWNACK": wire.KindShutdownAck, "COMPLETE": wire.KindShutdownComplete,
		"ABORT": wire.KindAbort, "ERROR": wire.KindError,
	}
	verdicts := map[verdict]string{
		pass: "pass", badTag: "badTag", unexpected: "unexpected", refused: "refused", fresh: "fresh",
	}
	phases := map[phase]string{
		opening: "opening", answered: "answered", established: "established", ending: "ending", ended: "ended",
	}
	for name, script := range scripts {
		var a assoc
		now := int64(1)
		script = strings.Replace(strings.TrimSpace(script), "OPEN", `C INIT =7 -> pass opening
			B INITACK 7 =9 -> pass answered
			C COOKIEECHO 9 -> pass answered
			B COOKIEACK 7 -> pass established`, 1)
		for line := range strings.Lines(script) {
			if strings.TrimSpace(line) == "later" {
				now += 2 * giveUp
				continue
			}
			did, want, _ := strings.Cut(line, "->")
			words := strings.Fields(did)
			kind, ok := names[words[1]]
			if !ok {
				t.Fatalf("%s: %s", name, line)
			}
			c := wire.Content{Kinds: kind}
			for _, w := range words[2:] {
				var tag uint32
				if _, err := fmt.Sscanf(strings.Trim(w, "=T"), "%d", &tag); err != nil {
					t.Fatalf("%s: %s: %v", name, line, err)
				}
				if c.Reflected = strings.HasSuffix(w, "T"); strings.HasPrefix(w, "=") {
					c.InitTag = tag
				} else {
					c.Tag = tag
				}
			}
			var v verdict
			if words[0] == "C" {
				v = a.fromClient(&c, now)
			} else {
				v = a.fromBackend(&c)
			}
			if got := verdicts[v] + " " + phases[a.phase]; got != strings.TrimSpace(want) {
				t.Errorf("%s: %s: %s, want %s", name, strings.TrimSpace(did), got, want)
				break
			}
		}
	}
}
