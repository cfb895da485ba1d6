// Package nfnl speaks with the subsystems of nfnetlink: nf_tables, ipset and conntrack.
package nfnl
