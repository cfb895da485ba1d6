//go:build !linux

package testbed

import (
	"errors"
	"net"
	"net/netip"
)

// Other platforms have no network namespaces: New and Reexec fail with
// ErrUnsupported, so that programs that use them still compile, and tests skip.

type namespace struct{}

func (*namespace) enter() (func() error, error) { return nil, errors.ErrUnsupported }
func (*namespace) close()                       {}

type port struct{}

func (*port) forward(bool) error { return errors.ErrUnsupported }

type starter struct{}

func newStarter() *starter        { return &starter{} }
func (*starter) start(*Cmd) error { return errors.ErrUnsupported }
func (*starter) close()           {}

func (*Testbed) build(Config) error    { return errors.ErrUnsupported }
func (*Testbed) addPlain(string) error { return errors.ErrUnsupported }

func cable(End, End) error                                 { return errors.ErrUnsupported }
func (*Host) unplug()                                      {}
func (*Host) route(string, netip.Prefix, netip.Addr) error { return errors.ErrUnsupported }

func ownNamespace() (*namespace, error)     { return nil, ErrUnsupported }
func enteredNamespace() (*namespace, error) { return nil, ErrUnsupported }

func receivePacketInfo(*net.UDPConn) error { return nil }

func notAllowed(err error) bool { return errors.Is(err, errors.ErrUnsupported) }

func reexec() error { return errors.ErrUnsupported }

func filterTables() ([]string, error)  { return nil, errors.ErrUnsupported }
func openFiles(int) ([]string, error)  { return nil, errors.ErrUnsupported }
func residentBytes(int) (int64, error) { return 0, errors.ErrUnsupported }
