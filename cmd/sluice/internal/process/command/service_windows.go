package command

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/windows/svc"
)

// stopHint is how long the service manager is asked to wait for a stop at a time.
const stopHint = 10 * time.Second

// underServiceManager calls run as what Windows' service manager starts and stops. It returns
// what run does.
func underServiceManager(ctx context.Context, run func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &service{run: func() error { return run(ctx) }, stop: stop}
	if err := svc.Run("sluice", s); err != nil { // the name matters only to services that share a process
		return fmt.Errorf("--windows-service: talk to the service manager: %w", err)
	}
	return s.err
}

// service is the svc.Handler of the program.
type service struct {
	run  func() error
	stop func()
	err  error
}

// Execute runs the program until it ends or is asked to.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest,
	status chan<- svc.Status) (specific bool, code uint32) {
	status <- svc.Status{State: svc.StartPending}
	ended := make(chan error, 1)
	go func() { ended <- s.run() }()
	running := svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	status <- running
	now := running
	alive := time.NewTicker(stopHint / 2)
	defer alive.Stop()
	for {
		select {
		case s.err = <-ended:
			status <- svc.Status{State: svc.StopPending}
			if s.err != nil {
				return true, 1
			}
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- now
			case svc.Stop, svc.Shutdown:
				now = svc.Status{State: svc.StopPending, WaitHint: uint32(stopHint.Milliseconds())}
				status <- now
				s.stop()
			}
		case <-alive.C:
			if now.State == svc.StopPending { // connections may need a while to end
				now.CheckPoint++
				status <- now
			}
		}
	}
}
