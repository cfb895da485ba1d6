package command

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// asker returns what asks at a terminal; nil: in is none, or this process runs in its background.
func asker(in *os.File, out io.Writer) func(done <-chan struct{}, question string) bool {
	group, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return nil
	}
	return func(done <-chan struct{}, question string) bool {
		fmt.Fprintf(out, "%s [y/N] ", question)
		answer := make(chan string, 1)
		go func() { // ends with the process if there is no answer
			line, _ := bufio.NewReader(in).ReadString('\n')
			answer <- line
		}()
		select {
		case line := <-answer:
			line = strings.ToLower(strings.TrimSpace(line))
			return line == "y" || line == "yes"
		case <-done:
			return false
		}
	}
}
