// Package look is what servers say of single connections, associations and flows while they move: for people who look
// at a running process. It costs a loop a short call for each part of what it has, and only while it is asked.
package look
