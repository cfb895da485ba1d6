package config

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const patience = 20 * time.Second

// watched is a Watcher that runs, and what it reports.
type watched struct {
	t              *testing.T
	changed        chan Config
	invalid, blind chan error
	ended          chan struct{}
}

// watch lets a Watcher run. That it is blind is an error that the test does not take.
func watch(t *testing.T, w Watcher, file string) *watched {
	t.Helper()
	w.Args = []string{"--config", file}
	if w.Last.File == "" {
		w.Last = parse(t, w.Args...)
	}
	x := &watched{t: t, changed: make(chan Config, 10), invalid: make(chan error, 10), blind: make(chan error, 10),
		ended: make(chan struct{})}
	w.Changed = func(c Config) bool {
		x.changed <- c
		return false
	}
	w.Invalid = func(err error) { x.invalid <- err }
	w.Blind = func(err error) { x.blind <- err }
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(x.ended)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-x.ended
		if len(x.blind) > 0 {
			t.Errorf("blind: %v", <-x.blind)
		}
	})
	return x
}

// wantIPVS waits for the change to that mode.
func (x *watched) wantIPVS() {
	x.t.Helper()
	select {
	case c := <-x.changed:
		if c.DataPath.Mode != ModeIPVS {
			x.t.Errorf("changed to %+v", c)
		}
		<-x.ended
	case <-time.After(patience):
		x.t.Error("the change was not seen")
	}
}

// wantError waits for an error. On a slow machine others may come before it,
// about a file that is written only in part.
func (x *watched) wantError(from chan error, want string) {
	x.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case c := <-x.changed:
			x.t.Errorf("changed to %+v", c)
			return
		case err := <-from:
			if strings.Contains(err.Error(), want) {
				return
			}
			x.t.Logf("%v, waiting for %q", err, want)
		case <-deadline:
			x.t.Errorf("no error with %q was seen", want)
			return
		}
	}
}

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// followed skips the test where links are made and not followed, which is wine.
func followed(t *testing.T, link string) {
	t.Helper()
	if _, err := os.Stat(link); err != nil {
		t.Skipf("SKIPPED: a symbolic link is not followed: %v", err)
	}
}

// TestWatchWrite: a mistake is told and survived, a comment changes nothing, and a
// change of meaning is told once. The rescan is far away: events tell.
func TestWatchWrite(t *testing.T) {
	file := write(t, "f.yaml", header)
	x := watch(t, Watcher{Rescan: time.Hour}, file)
	put(t, file, header+"mode: bridge\n")
	x.wantError(x.invalid, "unknown")
	put(t, file, header+"# still the same\nmode: userspace\nlogging: {options: {text: {infoBufferSize: \"0\"}}}\n")
	put(t, file, header+"oomScoreAdj: 5000\n") // told only if the one before was not a change
	x.wantError(x.invalid, "oomScoreAdj")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	x.wantError(x.invalid, "open "+file)
	put(t, file, header+"mode: ipvs\n")
	x.wantIPVS()
}

// TestWatchBusyFolder: a folder in which something always happens does not keep a change
// from being seen.
func TestWatchBusyFolder(t *testing.T) {
	file := write(t, "f.yaml", header)
	x := watch(t, Watcher{Rescan: time.Hour}, file)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(quiet / 500)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = os.WriteFile(file+".log", nil, 0o600)
			}
			if n == 200 {
				_ = os.WriteFile(file, []byte(header+"mode: ipvs\n"), 0o600)
			}
		}
	}()
	select {
	case c := <-x.changed:
		x.changed <- c
	case <-time.After(patience):
	}
	close(stop) // before the watcher ends: under wine it does so only once the folder is quiet
	<-ended
	x.wantIPVS()
}

// TestWatchRename: editors and kubelet replace files.
func TestWatchRename(t *testing.T) {
	file := write(t, "f.yaml", header)
	x := watch(t, Watcher{Rescan: time.Hour}, file)
	put(t, file+".new", header+"mode: ipvs\n")
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	x.wantIPVS()
}

// TestWatchConfigMap: in a volume of a ConfigMap the file is a link into a link,
// which kubelet swaps.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	link := func(to, name string) {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
	}
	for name, text := range map[string]string{"..1": header, "..2": header + "mode: ipvs\n"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, name, "f.yaml"), text)
	}
	link("..1", "..data")
	link(filepath.Join("..data", "f.yaml"), "f.yaml")
	followed(t, filepath.Join(dir, "f.yaml"))
	x := watch(t, Watcher{Rescan: time.Hour}, filepath.Join(dir, "f.yaml"))
	link("..2", "..data_tmp")
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "..1")); err != nil {
		t.Fatal(err)
	}
	x.wantIPVS()
}

// TestWatchFarLink: a link is replaced on the way to the link that leads to the file.
func TestWatchFarLink(t *testing.T) {
	dir, far := t.TempDir(), t.TempDir()
	put(t, filepath.Join(far, "f.yaml"), header)
	for _, names := range [][2]string{{far, "b"}, {"b", "a"}} {
		if err := os.Symlink(names[0], filepath.Join(dir, names[1])); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
	}
	followed(t, filepath.Join(dir, "a", "f.yaml"))
	sub := filepath.Join(far, "sub")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	x := watch(t, Watcher{Rescan: time.Hour}, filepath.Join(dir, "a", "f.yaml"))
	put(t, filepath.Join(sub, "f.yaml"), header+"mode: ipvs\n")
	if err := os.Symlink(sub, filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "c"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	x.wantIPVS()
}

// TestWatchFolderToCome: the folder of the file is gone, and comes again.
func TestWatchFolderToCome(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	file := filepath.Join(dir, "f.yaml")
	x := watch(t, Watcher{Last: Config{File: file}, Rescan: time.Hour}, file)
	x.wantError(x.invalid, "f.yaml")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, file, header+"mode: ipvs\n")
	x.wantIPVS()
}

func TestWatchNothing(t *testing.T) {
	new(Watcher).Run(t.Context()) // without --config it returns at once
}
