//go:build !linux

package load

// Main runs a role, if the arguments (without the program's name) ask for one.
// There are none on this platform.
func Main([]string) (status int, ok bool) { return 0, false }
