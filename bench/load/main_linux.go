package load

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a role, if the arguments (without the program's name) ask for one, and
// returns the exit status. Call it before anything else in main.
func Main(args []string) (status int, ok bool) {
	if len(args) != 2 {
		return 0, false
	}
	var err error
	switch args[0] {
	case RoleServe:
		err = with(args[1], serve)
	case RoleAsk:
		err = with(args[1], func(c AskConfig) error { return ask(c, os.Stdin, os.Stdout) })
	case RoleRelay:
		err = with(args[1], func(c RelayConfig) error {
			r, err := NewRelay(c)
			if err != nil {
				return err
			}
			defer r.Close()
			fmt.Println(Begin)
			stop := make(chan os.Signal, 1)
			signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
			<-stop
			return nil
		})
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, args[0]+":", err)
		return 1, true
	}
	return 0, true
}

func with[C any](text string, f func(C) error) error {
	var c C
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	return f(c)
}

// ask runs a client.
func ask(c AskConfig, in io.Reader, out io.Writer) error {
	m := newMeter(c, in, out)
	var r runner
	var err error
	if c.Kind == Datagrams || c.Kind == DNS {
		r, err = newDatagrams(c, m)
	} else {
		r, err = newStreams(c, m)
	}
	if err != nil {
		return err
	}
	if c.Rate > 0 {
		if err := exactTimers(); err != nil {
			return fmt.Errorf("have exact timers: %w", err)
		}
	}
	if err := m.run(r); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(m.result)
}
