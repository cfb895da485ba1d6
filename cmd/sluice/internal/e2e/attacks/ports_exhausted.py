"""A backend towards which all ephemeral ports are taken must not slow down other Services, and must recover."""
from lab import *
lab = Lab()
lab.pods(tcp=[8080, 8081])
lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080) + svc("full", "10.96.0.66", 80, ["10.77.2.12"], 8081))
if os.environ.get("SMALL", "1") == "1": lab.node("sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 34767")
else: lab.node("sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 40767")   # 2,000 ports: the effect without 28,000 connections
lab.start(pre="ulimit -n 20000")
lab.node("sysctl", "net.ipv4.ip_local_port_range")
n = 2000 if os.environ.get("SMALL", "1") == "1" else 8000
h = lab.tool(lab.c, "hold", "10.96.0.66", 80, n, 4000, 30 + n / 4000)
time.sleep(2 + n / 4000)
print(lab.metrics("sluice_(active|dialling)_connections|sluice_deferred"), lab.ps())
c0 = lab.ps()["cpu_s"]; t0 = time.time()
quiet = lab.tool(lab.c, "rr", "10.96.0.10", 80, 3, 64, 4).out()
x = lab.tool(lab.c, "short", "10.96.0.66", 80, 6, int(os.environ.get("RATE", 300)), 5000)   # more to the Service that has no port left
time.sleep(1)
c1 = lab.ps()["cpu_s"]; t1 = time.time()
g = lab.tool(lab.c, "rr", "10.96.0.10", 80, 4, 64, 4)
s = lab.tool(lab.c, "short", "10.96.0.10", 80, 4, 100, 3000).out(); g = g.out()
m = lab.metrics("sluice_(active|dialling)_connections|sluice_deferred|accept_pauses"); c2 = lab.ps()["cpu_s"]; t2 = time.time()
x = x.out()
h.out(60); time.sleep(1.5)
after = lab.tool(lab.c, "short", "10.96.0.66", 80, 2, 100, 3000).out()
ok = s["ok"] > 0.99 * 400 and g["p99_ms"] < 10 * max(1, quiet["p99_ms"]) and after["ok"] > 190
report("ports_exhausted", ok, quiet=quiet, requests_of_other_service=g, new_connections_of_other_service=s, to_the_full_one={k: x[k] for k in x if k != "per_s"}, cores_used=(c2 - c1) / (t2 - t1), metrics=m, recovered=after)
