package e2e

import (
	"os"
	"testing"
)

// TestWatchRestoredBackup brings the cluster back to what it was some time ago, as an
// administrator does with a backup of etcd: versions of objects go back with it.
func TestWatchRestoredBackup(t *testing.T) {
	l := newLab(t)
	l.serve(8080, l.Pods...)
	l.apply(service("web", "ports: [{port: 80}]"), slice("web", 1, 8080, "TCP", l.Pods[0]))
	l.start()
	web := l.addr("web", 80)
	l.expect(l.Client, "tcp", web, l.Pods[0])

	kill(l.server)
	kill(l.etcd)
	l.check(os.CopyFS(l.path("backup"), os.DirFS(l.path("etcd"))))
	l.check(l.startEtcd())
	l.check(l.startServer())
	for range 50 { // so that there are versions that will not have been
		l.apply(slice("web", 1, 8080, "TCP", l.Pods[2]))
		l.apply(slice("web", 1, 8080, "TCP", l.Pods[1]))
	}
	l.expect(l.Client, "tcp", web, l.Pods[1])

	kill(l.server)
	kill(l.etcd)
	l.check(os.RemoveAll(l.path("etcd")))
	l.check(os.Rename(l.path("backup"), l.path("etcd")))
	l.check(l.startEtcd())
	l.check(l.startServer())
	l.expect(l.Client, "tcp", web, l.Pods[0])
	l.apply(slice("web", 1, 8080, "TCP", l.Pods[2]))
	l.expect(l.Client, "tcp", web, l.Pods[2])
}
