// Package conditions holds what is wrong now and lasts: what is rejected, ignored or leads nowhere. Log, Events,
// status, page, health detail and metrics read it from here, so that all of them say the same.
//
// Who finds something out puts the whole list for one subject, like a Service or a folder of manifests; the Set finds
// out what has begun and what is over, and reports each once.
package conditions
