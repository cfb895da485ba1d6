package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/handover"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/notify"
)

const (
	// parentPatience is how long an upgrade waits for the end of the process that this one
	// took over from, which comes at once.
	parentPatience = 5 * time.Second

	// noticePause is how long tableflip v1.2.3 may take to notice the end that it has
	// reported: it refuses to upgrade until then, and has no event for it.
	noticePause = 20 * time.Millisecond
)

var (
	// errStopping is why a process that is to end does not hand over.
	errStopping = errors.New("the running process is stopping")
	// errBusy is why one that has a hand-over under way does not begin another.
	errBusy = errors.New("the running process is starting, handing over already, or stopping")
)

// handleRequests accepts processes that take over, and requests to upgrade. Those that still wait when it ends look
// for who serves then.
func (u *Upgrader) handleRequests(ctx context.Context) {
	defer u.socket.Close()
	for {
		ch, err := u.socket.Accept(ctx)
		if err == nil {
			err = u.handleRequest(ctx, ch)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			u.log.Warn("rejected a connection to the handover socket", zap.Error(err))
			if errors.Is(err, handover.ErrBroken) {
				return
			}
		}
	}
}

// handleRequest does what the process at the other end of ch asks for. An error is one of
// what it says; how a hand-over went is logged.
func (u *Upgrader) handleRequest(ctx context.Context, ch *handover.Channel) error {
	ctx, cancel := context.WithTimeout(ctx, handover.HelloTimeout)
	defer cancel()
	hello, err := ch.Hello(ctx)
	switch {
	case errors.Is(err, handover.ErrEnded): // it only looked whether this process is there
		ch.Close()
		return nil
	case err != nil:
		u.refuse(ch, err)
		return err
	case hello.Upgrade:
		err = u.handOver("request", u.giveChild, ch.Upgraded)
	default:
		select {
		case u.giving <- struct{}{}:
			err = u.give("take-over", func() (handover.Report, error) {
				return handover.Give(context.Background(), ch, hello, u.state, &u.listeners)
			}, func(int) { notify.Left(u.log) })
		case <-ctx.Done():
			err = errBusy
		}
	}
	if err != nil {
		u.refuse(ch, err) // once more after Give, which the other side does not read
	}
	ch.Close()
	return nil
}

// refuse reports an error to the other side, unless that is to look for another process, which has everything now.
func (u *Upgrader) refuse(ch *handover.Channel, err error) {
	select {
	case <-u.done:
		ch.Close()
	default:
		_ = ch.Fail(err)
	}
}

// handleSignals has each signal lead to an upgrade: one that comes during a hand-over to one by the successor, if that
// is a child.
func (u *Upgrader) handleSignals(ctx context.Context) {
	defer signal.Stop(u.signals)
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-u.signals:
			select {
			case u.giving <- struct{}{}:
				_ = u.give(sig.String(), u.giveChild, func(int) {}) // it is logged
			case <-u.done:
				if u.successor != 0 {
					_ = syscall.Kill(u.successor, sig.(syscall.Signal)) // it may have handed over, too
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Upgrade starts the program anew and hands over to it, of which it logs the result. Without
// an error Done is closed.
func (u *Upgrader) Upgrade(trigger string) error {
	return u.handOver(trigger, u.giveChild, func(int) {})
}

// handOver is give, unless a hand-over is under way or has succeeded.
func (u *Upgrader) handOver(trigger string, give func() (handover.Report, error), done func(pid int)) error {
	select {
	case u.giving <- struct{}{}:
		return u.give(trigger, give, done)
	default:
		return errBusy
	}
}

// give calls give. On success done is called with the process that serves now, and Done is closed; else this one serves
// on. The caller has the token of giving, which is given back then.
func (u *Upgrader) give(trigger string, give func() (handover.Report, error), done func(pid int)) error {
	r, err := give()
	if err != nil {
		<-u.giving
		if u.stopping.Err() != nil {
			u.log.Info("not handed over; this process stops", zap.String("trigger", trigger), zap.Error(err))
			return err
		}
		u.metrics.Failed()
		u.log.Error("not handed over; this process serves on, with every connection", zap.String("trigger", trigger),
			zap.Error(err))
		u.failed(err)
		return err
	}
	done(r.Peer)
	u.log.Info("handed over; this process ends", report(r)...)
	close(u.done)
	u.turnAway()
	return nil
}

// giveChild starts a successor, gives it everything, and reports that to the service manager.
func (u *Upgrader) giveChild() (handover.Report, error) {
	notify.Reloading(u.log)
	r, err := u.replace()
	if err == nil {
		u.successor = r.Peer
		notify.Successor(u.log, r.Peer)
	} else if u.stopping.Err() == nil {
		notify.Kept(u.log, err)
	}
	return r, err
}

func (u *Upgrader) replace() (handover.Report, error) {
	select {
	case <-u.stopping.Done():
		return handover.Report{}, errStopping
	case <-u.alone:
	case <-time.After(parentPatience):
		return handover.Report{}, fmt.Errorf("the parent process has not ended within %v", parentPatience)
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
	u.log.Info("starting a successor", zap.String("program", os.Args[0]))
	child, cancel := context.WithCancelCause(u.stopping)
	started := make(chan error, 1)
	go func() {
		err := u.flip.Upgrade() // returns when the child is ready, or has ended
		if err != nil {
			cancel(fmt.Errorf("start a successor: %w", err))
		}
		started <- err
	}()
	var r handover.Report
	hello, err := ch.Hello(child)
	if err == nil {
		r, err = handover.Give(child, ch, hello, u.state, &u.listeners)
	}
	if err == nil {
		return r, nil
	}
	if u.stopping.Err() != nil {
		u.flip.Stop() // kills it: it may wait for an API server
		<-started
		return r, errStopping
	}
	ended := <-started // by itself, since it has got nothing
	if said, ok := errors.AsType[*handover.Failure](err); ok {
		return r, said // why it does not start, without where in our conversation it said so
	}
	if ended == nil {
		return r, err
	}
	if errors.Is(err, context.Canceled) {
		return r, context.Cause(child)
	}
	return r, errors.Join(err, context.Cause(child))
}

// awaitParent closes alone when the process that this one took over from has ended, if it is
// its child.
func (u *Upgrader) awaitParent(ctx context.Context) {
	if u.flip.HasParent() {
		if err := u.flip.WaitForParent(ctx); err != nil {
			u.log.Warn("this process cannot be upgraded, the end of its parent is unknown", zap.Error(err))
			return
		}
		select {
		case <-time.After(noticePause): // see there: no event can be awaited
		case <-ctx.Done():
			return
		}
	}
	close(u.alone)
}
