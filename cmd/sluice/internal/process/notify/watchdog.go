package notify

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// Watchdog returns within which time the manager wants to hear from this process again and
// again (WatchdogSec=, systemd.service(5)); 0: it does not. It is called before a successor is started:
// WATCHDOG_PID, which names the first process of the service, is removed for those that follow.
func Watchdog() (time.Duration, error) {
	const limit, whose = "WATCHDOG_USEC", "WATCHDOG_PID"
	text := os.Getenv(limit)
	if text == "" {
		return 0, nil
	}
	if pid := os.Getenv(whose); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil // it is for another program
	}
	_ = os.Unsetenv(whose) // fails for a malformed name only
	usec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || usec <= 0 {
		return 0, fmt.Errorf("read %s: %q is no number of microseconds", limit, text)
	}
	return time.Duration(usec) * time.Microsecond, nil
}
