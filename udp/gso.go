package udp

import "fmt"

// GSO says whether datagrams of equal length are sent several by one call (UDP_SEGMENT, udp(7)).
type GSO uint8

// The values of GSO.
const (
	GSOAuto GSO = iota // unless AvoidGSO says that they might be corrupted
	GSOOn
	GSOOff
)

func (g GSO) String() string { return [...]string{"auto", "on", "off"}[g] }

// MarshalText returns the String.
func (g GSO) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText sets g to what the text says: auto, on or off, or true or false, which it was once.
func (g *GSO) UnmarshalText(text []byte) error {
	switch string(text) {
	case "auto":
		*g = GSOAuto
	case "on", "true":
		*g = GSOOn
	case "off", "false":
		*g = GSOOff
	default:
		return fmt.Errorf("%q is none: give auto, on or off", text)
	}
	return nil
}
