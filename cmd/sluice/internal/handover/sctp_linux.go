package handover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sluice-lb/sluice/sctp"
)

// SCTP associations cross while everything is paused, without being copied before, and as
// JSON: they are few, and live for long. Each batch is a part, after messages with the file
// descriptors of the associations in it.

// assocsSize is how many bytes make a batch, about: it also holds messages in hand, of up to
// sctp.Server.MaxMessage.
const assocsSize = 1 << 20

// sendAssocs sends all associations, while the loops are halted.
func (g *giver) sendAssocs(ctx context.Context) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	var fds []int
	flush := func() error {
		if b.Len() == 0 {
			return nil
		}
		for batch := range slices.Chunk(fds, maxFDs) {
			if err := g.ch.send(ctx, assocSocketsMsg, nil, batch...); err != nil {
				return err
			}
		}
		err := g.ch.sendPart(ctx, assocsPart, b.Bytes())
		b.Reset()
		fds = fds[:0]
		return err
	}
	err := g.SCTP.Freeze(func(f *sctp.Frozen) error {
		g.report.Assocs++
		if err := enc.Encode(f); err != nil {
			return fmt.Errorf("encode SCTP association: %w", err)
		}
		if s := f.Sockets; s != nil {
			fds = append(fds, s.Client)
			if s.Backend >= 0 {
				fds = append(fds, s.Backend)
			}
		}
		if b.Len() > assocsSize {
			return flush()
		}
		return nil
	})
	return errors.Join(err, flush())
}

// assocSockets keeps file descriptors of associations that come next.
func (t *Taker) assocSockets(m message) (kept bool, err error) {
	if len(t.assocFDs)+len(m.fds) > maxConns {
		return false, fmt.Errorf("%d file descriptors of associations", len(t.assocFDs)+len(m.fds))
	}
	t.assocFDs = append(t.assocFDs, m.fds...)
	return true, nil
}

// receiveAssocs keeps associations that have stopped, and gives them their file descriptors.
func (t *Taker) receiveAssocs(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	for {
		var f sctp.Frozen
		err := dec.Decode(&f)
		switch {
		case errors.Is(err, io.EOF) && len(t.assocFDs) > 0:
			return fmt.Errorf("%d file descriptors of no association", len(t.assocFDs))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("decode SCTP association: %w", err)
		case (f.Sockets == nil) == (f.Packets == nil):
			return errors.New("an SCTP association of no engine")
		}
		if f.Sockets != nil {
			err = t.takeAssocFDs(f.Sockets)
		}
		t.assocs = append(t.assocs, f) // also if one is missing: what is there is closed with it
		if err != nil {
			return err
		}
	}
}

// takeAssocFDs replaces the sender's numbers of file descriptors by ours.
func (t *Taker) takeAssocFDs(s *sctp.Sockets) (err error) {
	for _, fd := range [...]*int{&s.Client, &s.Backend} {
		switch {
		case *fd < 0:
		case len(t.assocFDs) == 0:
			*fd, err = -1, errors.New("file descriptors of associations are missing")
		default:
			*fd, t.assocFDs = t.assocFDs[0], t.assocFDs[1:]
		}
	}
	return err
}

// closeAssocs closes the file descriptors of all that has come of SCTP.
func (t *Taker) closeAssocs() {
	closeAll(t.assocFDs)
	for _, f := range t.assocs {
		if s := f.Sockets; s != nil {
			closeAll([]int{s.Client, s.Backend})
		}
	}
}

// adoptSCTP sets in motion what has come of SCTP, with file descriptors that take gives.
func (t *Taker) adoptSCTP(s *State, take func(int) []int, thawed func()) error {
	t.setup.SCTP.FDs(func(fd *int) { *fd = take(1)[0] })
	closeAll(t.spare)
	err := s.SCTP.Adopt(t.setup.SCTP, t.assocs, thawed)
	s.SCTP.Restore(t.counts.SCTP)
	closeAll(t.assocFDs) // the giver was killed in the middle of them
	return err
}
