// Package cli is the commands that look at a running Sluice through its API: tables as kubectl prints them, JSON and
// YAML. Names, reasons and notes come from objects that anyone may have written, and are escaped before they reach a
// terminal.
//
// A command is a row in commands; the flags that all of them have are in view.
package cli
