package lb

import "net/netip"

// Outlier is when backends are ejected, and for how long. Times are in nanoseconds. The zero Outlier ejects none, and
// DefaultOutlier is Envoy's, but for MaxEjectionPercent, of which 10 would be none of nine.
type Outlier struct {
	// Enabled says whether backends of services are ejected that do not say so themselves (Policies.OutlierEjection).
	Enabled bool

	ConsecutiveFailures int   // failures in a row that eject; less than 2 are 2, as others must have answered meanwhile
	BaseEjectionTime    int64 // of the first ejection
	MaxEjectionTime     int64 // the longest; BaseEjectionTime if that is more
	Interval            int64 // time without an ejection that takes one off those in a row
	MaxEjectionPercent  int   // of the eligible backends of a service, of which one stays in any case
	PanicThreshold      int   // percent of a ring that must not be ejected for ejections to count; 0: one backend

	// FailurePercentage ejects backends of which so many percent of the connections of an Interval have failed; 0:
	// none. It counts where FailureMinimumHosts backends of a service have had FailureRequestVolume connections each.
	FailurePercentage, FailureMinimumHosts, FailureRequestVolume int
}

// DefaultOutlier has the default of every parameter.
var DefaultOutlier = Outlier{Enabled: true, ConsecutiveFailures: 5, BaseEjectionTime: 30e9, MaxEjectionTime: 300e9,
	Interval: 10e9, MaxEjectionPercent: 50, PanicThreshold: 50, FailureMinimumHosts: 5, FailureRequestVolume: 50}

// Ejection says that a backend was ejected, or has returned.
type Ejection struct {
	Service  ID
	Backend  netip.AddrPort
	Returned bool
	Check    bool  // its active check has failed or passed; else connections have, or a trial
	Err      error // the last failure; nil if it has returned
	Time     int64 // how long it is ejected if no trial succeeds before, or was, in ns; 0 for a check that fails
	Times    int   // ejections in a row, this one included; 0 for a check
}
