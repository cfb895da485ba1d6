package netfilter

import "errors"

// ErrLocked is wrapped by errors of programs that another one kept from the xtables lock.
var ErrLocked = errors.New("the xtables lock is held")
