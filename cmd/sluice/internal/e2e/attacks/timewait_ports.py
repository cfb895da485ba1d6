"""Clients that close first leave Sluice's socket to the backend in TIME_WAIT: ports towards one backend run out at (ports/60 s)
connections per second, and then every Service suffers. RANGE ports (default as Linux has them)."""
from lab import *
os.environ["FIN"] = "1"
RATE = int(os.environ.get("RATE", 1500)); SECS = int(os.environ.get("SECS", 30))
lab = Lab(); lab.client("sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1")
lab.pods(tcp=[8080, 8081])
lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080) + svc("busy", "10.96.0.66", 80, ["10.77.2.12"], 8081))
if os.environ.get("RANGE"): lab.node("sysctl", "-qw", "net.ipv4.ip_local_port_range=" + os.environ["RANGE"])
for k in os.environ.get("SYSCTL", "").split(): lab.node("sysctl", "-qw", k)
lab.start()
g = lab.tool(lab.c, "rr", "10.96.0.10", 80, SECS, 64, 4)
s = lab.tool(lab.c, "short", "10.96.0.10", 80, SECS, 50, 3000)
x = lab.tool(lab.c, "short", "10.96.0.66", 80, SECS, RATE, 5000)
c0 = lab.ps()["cpu_s"]
x, g, s = x.out(), g.out(), s.out()
tw = lab.node("sh", "-c", "ss -Htan state time-wait | wc -l").stdout.strip()
report("timewait_ports", x["ok"] > 0.99 * RATE * SECS and g["p99_ms"] < 30 and s["p99_ms"] < 500, rate=RATE, secs=SECS, busy=x, other_requests=g, other_new=s, time_wait=tw, cpu_s=lab.ps()["cpu_s"] - c0, metrics=lab.metrics("sluice_deferred"), tw_reuse=lab.node("sysctl", "-n", "net.ipv4.tcp_tw_reuse").stdout.strip())
