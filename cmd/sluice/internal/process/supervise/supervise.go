package supervise

import "strconv"

// Exit is the end of the process that served, with another exit code than 0.
type Exit struct{ Code int }

// Error says so.
func (e *Exit) Error() string {
	return "the process that served ended with exit code " + strconv.Itoa(e.Code)
}
