// Package nearest finds the name that a person may have meant.
package nearest
