"""Connections to a Service whose endpoints are silent must not keep other Services' clients from being accepted.
MaxDials (4,096 per loop) is shared by all Services: when it is used up nobody is accepted."""
from lab import *
RATE = int(os.environ.get("RATE", 4000)); SECS = 10
lab = Lab()
lab.pods(tcp=[8080])
lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11", "10.77.2.12"], 8080) + svc("hole", "10.96.0.66", 80, ["10.77.2.20"], 9999))
lab.exec(lab.p, "iptables", "-I", "INPUT", "-d", "10.77.2.20", "-j", "DROP")
lab.start()
base = lab.tool(lab.c, "short", "10.96.0.10", 80, 3, 200, 3000).out()
a = lab.tool(lab.c, "short", "10.96.0.66", 80, SECS, RATE, 8000)
time.sleep(1)
g = lab.tool(lab.c, "short", "10.96.0.10", 80, SECS - 2, 200, 3000)
time.sleep(4)
m = lab.metrics("sluice_(dialling|active|dials|accept_pauses|connections)_"); ps = lab.ps()
g = g.out(); a = a.out()
time.sleep(6)
after = lab.tool(lab.c, "short", "10.96.0.10", 80, 2, 200, 3000).out()
ok = g["ok"] > 0.99 * 200 * (SECS - 2) and g["p99_ms"] < 50
report("blackhole_starves", ok, rate=RATE, before=base, other_service_meanwhile=g, after=after, hole={k: a[k] for k in a if k != "per_s"}, metrics=m, ps=ps)
