package command

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// wait does nothing until it is to end: the container that follows --cleanup in a pod of
// deploy/overlays/uninstall, whose image has no other program that waits.
func wait(_ []string, stdout io.Writer) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	fmt.Fprintln(stdout, "waiting to be stopped")
	<-stop
	return nil
}
