package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/handover"
)

// errBusy refuses a second hand-over at a time, and one of a process that ends.
var errBusy = errors.New("the running process is handing over already, or stopping")

// handleRequests accepts requests to upgrade, and processes that take over.
func (u *Upgrader) handleRequests(ctx context.Context) {
	for {
		ch, hello, err := u.socket.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			u.log.Warn("rejected a connection to the handover socket", zap.Error(err))
			if errors.Is(err, handover.ErrBroken) {
				return
			}
		case hello.Upgrade:
			if err := u.upgrade("a request", ch.Upgraded); err != nil {
				ch.Fail(err)
			}
		default:
			u.give(ch, hello)
		}
	}
}

// give hands over to a process that is not our child.
func (u *Upgrader) give(ch *handover.Channel, hello handover.Hello) {
	defer ch.Close()
	if !u.begin() {
		ch.Fail(errBusy)
		return
	}
	r, err := handover.Give(context.Background(), ch, hello, u.state, &u.listeners)
	if err != nil {
		u.failed("not handed over; this process serves on, with every connection", err)
		return
	}
	u.handedOver(r)
}

// Upgrade starts the program anew and hands over to it, of which it logs the result. Without
// an error Done is closed.
func (u *Upgrader) Upgrade(reason string) error { return u.upgrade(reason, func(int) {}) }

// upgrade is Upgrade that calls done with the process that serves now, before the end of
// this one.
func (u *Upgrader) upgrade(reason string, done func(pid int)) error {
	if u.state == nil {
		return errors.New("the running process does not serve yet")
	}
	if !u.begin() {
		return errBusy
	}
	r, err := u.giveChild()
	if err != nil {
		u.failed("not upgraded; this process serves on, with every connection", err, zap.String("trigger", reason))
		return err
	}
	done(r.Peer)
	u.handedOver(r)
	return nil
}

// begin reports whether a hand-over may be tried: none is under way, or has succeeded.
func (u *Upgrader) begin() bool {
	select {
	case u.giving <- struct{}{}:
		return true
	default:
		return false
	}
}

// failed ends a hand-over that did not take place: it is counted and logged.
func (u *Upgrader) failed(what string, err error, fields ...zap.Field) {
	<-u.giving
	u.metrics.Failed.Add(1)
	u.log.Error(what, append(fields, zap.Error(err))...)
}

// handedOver ends what this process is for.
func (u *Upgrader) handedOver(r handover.Report) {
	u.log.Info("handed over; this process ends", report(r)...)
	close(u.done)
}

// giveChild starts a successor and gives it everything.
func (u *Upgrader) giveChild() (handover.Report, error) {
	if os.Getpid() == 1 {
		return handover.Report{}, errors.New("process 1 cannot be replaced by its child, since a container ends with it: " +
			"start another container with the same --handover-socket, which takes over")
	}
	ch, file, err := handover.Pair()
	if err != nil {
		return handover.Report{}, err
	}
	defer ch.Close()
	err = u.flip.AddFile(channelFile, file)
	if err = errors.Join(err, file.Close()); err != nil {
		return handover.Report{}, fmt.Errorf("pass a channel to the successor: %w", err)
	}
	if err := u.parentGone(); err != nil {
		return handover.Report{}, err
	}
	type result struct {
		handover.Report
		err error
	}
	child, ended := context.WithCancel(context.Background())
	defer ended()
	given := make(chan result, 1)
	started := make(chan error, 1)
	go func() {
		var r result
		var hello handover.Hello
		if hello, r.err = ch.Greet(child); r.err == nil {
			r.Report, r.err = handover.Give(child, ch, hello, u.state, &u.listeners)
		}
		given <- r
	}()
	go func() { started <- u.startSuccessor() }()
	u.log.Info("starting a successor", zap.String("program", os.Args[0]))
	var r result
	select {
	case r = <-given:
		if r.err != nil {
			err = <-started // it ends by itself, since it has got nothing
		}
	case err = <-started:
		ended()
		r = <-given
	}
	if _, said := errors.AsType[*handover.Failure](r.err); said || r.err == nil || err == nil {
		return r.Report, r.err
	}
	return r.Report, fmt.Errorf("start a successor: %w", errors.Join(err, r.err))
}

// startSuccessor makes tableflip start a process and waits until that is ready, or has ended.
func (u *Upgrader) startSuccessor() error {
	// tableflip v1.2.3 reports the parent's end, which parentGone has waited for, a
	// moment before it takes note of it, and has no name for the refusal.
	const early = "parent hasn't exited"
	err := u.flip.Upgrade()
	for tries := 0; tries < 1000 && err != nil && err.Error() == early; tries++ {
		runtime.Gosched()
		err = u.flip.Upgrade()
	}
	return err
}

// parentGone waits for the end of the process that this one took over from, which comes
// at once.
func (u *Upgrader) parentGone() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := u.flip.WaitForParent(ctx); err != nil {
		return fmt.Errorf("wait for the end of the parent process: %w", err)
	}
	return nil
}
