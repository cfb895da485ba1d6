package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// postgres has PostgreSQL run on hosts, which refuses to run as root: with a database of user app, who may have so many
// connections as there are.
type postgres struct {
	t   *testing.T
	l   *lab.Lab
	bin string
}

// as returns the arguments that have the user of Debian's package run a program.
func (p *postgres) as(program string, args ...string) []string {
	return append([]string{"--reuid=postgres", "--regid=postgres", "--clear-groups",
		filepath.Join(p.bin, program)}, args...)
}

// startPostgres starts a server on each host.
func startPostgres(t *testing.T, l *lab.Lab, most int, hosts ...*testbed.Host) *postgres {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if len(found) == 0 {
		t.Fatal("PostgreSQL is missing: make deps installs it")
	}
	p := &postgres{t: t, l: l, bin: filepath.Dir(found[len(found)-1])}
	dir, err := os.MkdirTemp("", "sluice-postgres-") // not of the test's folder, which only root may enter
	testbed.Check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	run("chown", "postgres:postgres", dir)
	first := filepath.Join(dir, "0")
	run("setpriv", p.as("initdb", "-D", first, "-A", "trust", "--no-sync", "--locale=C")...)
	testbed.Check(t, os.WriteFile(filepath.Join(first, "pg_hba.conf"), []byte("host all all all trust\n"), 0o600))
	for i := range hosts[1:] {
		run("cp", "-a", first, filepath.Join(dir, strconv.Itoa(i+1)))
	}
	for i, h := range hosts {
		data := filepath.Join(dir, strconv.Itoa(i))
		server, err := h.Command(context.Background(), "setpriv", p.as("postgres", "-D", data, "-h", "*", "-k", "",
			"-c", "fsync=off", "-c", "shared_buffers=8MB", "-c", fmt.Sprint("max_connections=", most+4),
			"-c", "superuser_reserved_connections=3")...).Launch()
		testbed.Check(t, err)
		t.Cleanup(func() {
			server.Stop(os.Interrupt) // which is a fast shutdown
			if t.Failed() {
				t.Logf("postgres on %s: %s", h, server.Log.String())
			}
		})
		l.Eventually("PostgreSQL serves", func() bool { _, err := p.ask(h, "select 1"); return err == nil })
		for _, sql := range []string{"create role app login", "create database app owner app"} {
			if _, err := p.ask(h, sql); err != nil {
				t.Fatal(err)
			}
		}
		p.bench(h.Addr4.String(), "-i", "-q").expect(0)
	}
	return p
}

// ask asks a server as its superuser, past Sluice.
func (p *postgres) ask(h *testbed.Host, sql string) (string, error) {
	out, err := p.l.Node.Command(p.t.Context(), filepath.Join(p.bin, "psql"), "-h", h.Addr4.String(), "-U", "postgres",
		"-Atqc", sql, "postgres").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("psql: %w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// lock has a server's transactions wait until release is called. The connection that locks stays open: the one that
// the server takes beside those of user app and the three that are reserved.
func (p *postgres) lock(h *testbed.Host) (release func()) {
	p.t.Helper()
	c := p.l.Node.Command(context.Background(), filepath.Join(p.bin, "psql"), "-h", h.Addr4.String(), "-U", "postgres",
		"-c", "begin", "-c", "lock table pgbench_accounts", "-f", "-", "app")
	in, err := c.StdinPipe()
	testbed.Check(p.t, err)
	process, err := c.Launch()
	testbed.Check(p.t, err)
	p.t.Cleanup(func() { process.Stop(os.Kill) })
	p.l.Eventually("the table is locked", func() bool { return strings.Contains(process.Log.String(), "LOCK TABLE") })
	return func() {
		_, err := in.Write([]byte("commit;\n"))
		testbed.Check(p.t, err)
	}
}

// clients returns how many connections user app has to a server.
func (p *postgres) clients(h *testbed.Host) string {
	out, err := p.ask(h, "select count(*) from pg_stat_activity where usename = 'app'")
	if err != nil {
		p.t.Error(err)
	}
	return out
}

// benching is a program that runs.
type benching struct {
	t *testing.T
	*testbed.Process
}

// bench starts pgbench as user app against an address.
func (p *postgres) bench(address string, args ...string) benching {
	p.t.Helper()
	c := p.l.Client.Command(context.Background(), filepath.Join(p.bin, "pgbench"),
		append(append([]string{"-h", address, "-U", "app"}, args...), "app")...)
	process, err := c.Launch()
	testbed.Check(p.t, err)
	p.t.Cleanup(func() { process.Stop(os.Kill) })
	return benching{p.t, process}
}

// expect waits for the end, and wants an exit code.
func (b benching) expect(code int) (log string) {
	b.t.Helper()
	select {
	case <-b.Done():
	case <-time.After(testbed.Patience):
		b.t.Fatalf("it goes on: %s", b.Log.String())
	}
	if got := b.Stop(os.Kill); got != code {
		b.t.Fatalf("exit code %d, want %d: %s", got, code, b.Log.String())
	}
	return b.Log.String()
}

// dbManifest is the Service of the database, with annotations.
func dbManifest(annotations string, primary *testbed.Host) []string {
	return []string{
		testbed.Annotated(testbed.ServiceManifest("db", "10.96.0.54:5432", "TCP", ""), annotations),
		testbed.SliceManifest("db", 1, 5432, "TCP", primary.Addr4.String()),
	}
}

// TestPostgreSQL: pgbench through Sluice. 100 clients of a server that takes 20, each transaction by a connection of
// its own: there is never one too many, and none is lost, also while one process takes over from another. After a
// change of the primary its clients are reset at once, or after a time, as the Service requests; an idle timeout ends
// what is idle and nothing else.
func TestPostgreSQL(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	const limit = 20
	l := lab.New(t, testbed.Config{Pods: 2})
	one, two := l.Pods[0], l.Pods[1]
	p := startPostgres(t, l, limit, one, two)
	primary := func(annotations string, h *testbed.Host) {
		t.Helper()
		l.Write("db.yaml", dbManifest(annotations, h)...)
	}
	primary("sluice.io/max-endpoint-connections: '20', sluice.io/queue-timeout: 1m", one)
	socket := filepath.Join(t.TempDir(), "socket")
	l.Start("--handover-socket", socket, "--metrics-service-families=all")

	// a thread each: to connect blocks one
	release := p.lock(one)
	all := p.bench("10.96.0.54", "-n", "-S", "-C", "-c", "100", "-j", "100", "-t", "4")
	const queued = `sluice_service_queued{protocol="TCP",service_name="db",service_namespace="default",service_port=""}`
	others := func() bool { return l.Metric(queued) == 100-limit }
	l.Eventually("all clients wait that are too many", others)
	l.HandOver("--handover-socket", socket, "--metrics-service-families=all")
	l.Eventually("they wait for the next process", others)
	release()
	if log := all.expect(0); !strings.Contains(log, "processed: 400/400") || strings.Contains(log, "FATAL") {
		t.Errorf("pgbench: %s", log)
	}
	if n := l.Metric(`sluice_waits_total{protocol="TCP",result="began",wait="queue"}`); n == 0 {
		t.Error("none has waited")
	}

	// Ten clients are at the primary, which changes.
	change := func(removed string, from, to *testbed.Host) (took time.Duration) {
		primary("sluice.io/on-endpoint-removed: "+removed, from)
		clients := p.bench("10.96.0.54", "-n", "-S", "-R", "50", "-c", "10", "-T", "300")
		l.Eventually("they are at the primary", func() bool { return p.clients(from) == "10" })
		primary("sluice.io/on-endpoint-removed: "+removed, to)
		start := time.Now()
		<-clients.Done() // all have been reset
		took = time.Since(start)
		l.Eventually("none is left there", func() bool { return p.clients(from) == "0" })
		if log := clients.expect(2); strings.Count(log, " aborted in command") != 10 {
			t.Errorf("pgbench: %s", log)
		}
		if log := p.bench("10.96.0.54", "-n", "-S", "-t", "1").expect(0); !strings.Contains(log, "processed: 1/1") {
			t.Errorf("at the new primary: %s", log)
		}
		return took
	}
	took := change("reset", one, two)
	if t.Logf("reset: the last client was reset after %v", took); took > 4*time.Second {
		t.Error("that is too late")
	}
	took = change("reset-after:5s", two, one)
	if t.Logf("reset-after:5s: the last client was reset after %v", took); took < 5*time.Second {
		t.Error("that is too soon")
	}

	primary("sluice.io/idle-timeout: 2s", one)
	busy := p.bench("10.96.0.54", "-n", "-S", "-R", "5", "-c", "2", "-T", "6")
	idle := l.Client.Command(t.Context(), filepath.Join(p.bin, "psql"), "-h", "10.96.0.54", "-U", "app", "-c",
		"select 1",
		"-c", `\! sleep 5`, "-c", "select 2", "app")
	if out, err := idle.CombinedOutput(); err == nil || strings.Contains(string(out),
		"?column?\n----------\n        2") {
		t.Errorf("a client that is idle for 5 s goes on: %v, %s", err, out)
	}
	if log := busy.expect(0); strings.Contains(log, "aborted") {
		t.Errorf("busy clients: %s", log)
	}
}

// TestRedis: a server that takes 4 clients never has to refuse one of 20.
func TestRedis(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	pod := l.Pods[0]
	server, err := pod.Command(context.Background(), "redis-server", "--maxclients", "4", "--save", "",
		"--protected-mode",
		"no", "--port", "6379").Launch()
	testbed.Check(t, err)
	t.Cleanup(func() { server.Stop(os.Kill) })
	l.Publish("db", "10.96.0.63:6379", "TCP",
		"sluice.io/max-endpoint-connections: '4', sluice.io/queue-timeout: 1m", 6379, pod)
	l.Start()
	cli := func(h *testbed.Host, args ...string) string {
		out, _ := h.Command(t.Context(), "redis-cli", args...).CombinedOutput()
		return string(out)
	}
	l.Eventually("Redis serves", func() bool { return strings.Contains(cli(pod, "ping"), "PONG") })
	out := l.Client.Run(t, "redis-benchmark", "-h", "10.96.0.63", "-k", "0", "-c", "20", "-n", "2000", "-t", "get",
		"--csv")
	if !strings.Contains(out, `"GET"`) || strings.Contains(out, "ERR") {
		t.Errorf("redis-benchmark: %s", out)
	}
	if info := cli(pod, "info", "stats"); !strings.Contains(info, "rejected_connections:0\r") {
		t.Errorf("Redis has refused clients: %s", info)
	}
	if l.Metric(`sluice_waits_total{protocol="TCP",result="began",wait="queue"}`) == 0 {
		t.Error("none has waited")
	}
}
