// Package upgrade replaces the running process by its successor, which takes over all that
// it serves, and is the way in of that successor. The conversation of the two, and what
// crosses, is package handover's.
//
// A successor is a child of the running process, which tableflip starts (sluice upgrade,
// SIGHUP, SIGUSR2, a changed --config), or an unrelated process that finds it by the
// handover socket (a new pod). The child inherits its end of the conversation instead of
// dialing; everything else is the same.
//
// After a hand-over Done is closed and Close returns ErrHandedOver, which main
// turns into the end of the process: nothing below it calls os.Exit.
//
// Goroutines: one that accepts connections to the handover socket, one that waits for
// signals, joined by Close; and tableflip's own.
package upgrade
