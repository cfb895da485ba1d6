// Package handover holds the end-to-end tests of upgrades and take-overs: two processes of
// the program, what crosses between them under load, and each of them killed at every step.
package handover
