// Package filewatch tells when files may have changed, however that is done: by writing, by
// renaming, as editors do it, or by exchanging a link on the way to them, as kubelet does it.
//
// Goroutines: Watcher.Run has one that takes the events of fsnotify, and ends it before it
// returns.
package filewatch
