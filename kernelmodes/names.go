package kernelmodes

import (
	"crypto/sha256"
	"encoding/base32"

	"github.com/sluice-lb/sluice/lb"
)

// Suffix names a Service port, or a backend of it, in 16 letters and digits: 80 bits of a hash.
// The names of iptables' chains have at most 28 characters (xt_table_info in the kernel).
func Suffix(id lb.ID, backend string) string {
	sum := sha256.Sum256([]byte(id.String() + " " + id.Protocol.String() + " " + backend))
	return base32.StdEncoding.EncodeToString(sum[:10])
}
