package upgrade

import "errors"

// ErrHandedOver means that another process has everything that this one served. This one
// must end at once, without closing or undoing anything.
var ErrHandedOver = errors.New("everything was handed over to another process")
