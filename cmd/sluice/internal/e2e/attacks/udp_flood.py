"""A flood from 200,000 spoofed sources: bounded flows, memory, descriptors and ephemeral ports; TCP, other UDP Services and the
node's own programs go on; afterwards all is given back."""
from lab import *
PPS = int(os.environ.get("PPS", 60000)); NS = int(os.environ.get("SERVICES", 2)); SECS = 8
lab = Lab()
lab.pods(tcp=[8080], udp=[5353, 5354])
lab.exec(lab.p, "ip", "route", "add", "10.128.0.0/9", "via", "10.77.2.1")
lab.exec(lab.n, "ip", "route", "add", "10.128.0.0/9", "via", "10.77.1.2")   # the spoofed ones have a way back
lab.client("ip", "route", "add", "blackhole", "10.128.0.0/9")
m = svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080) + svc("dns", "10.96.0.11", 53, ["10.77.2.11"], 5353, "UDP")
for i in range(NS): m += svc(f"f{i}", f"10.96.1.{i}", 53, ["10.77.2.12"], 5354, "UDP")
lab.manifest(m)
lab.start(*os.environ.get("ARGS", "").split())
before = lab.ps()
def own():   # can a program of the node get a UDP port and an answer of its own?
    r = lab.tool(lab.n, "udprr", "10.77.2.11", 5353, 2.2, 4, 50).out(); return {k: r.get(k) for k in ("sent", "lost", "err", "p99_ms", "raw")}
base = dict(tcp=lab.tool(lab.c, "short", "10.96.0.10", 80, 2, 100, 3000).out(), udp=lab.tool(lab.c, "udprr", "10.96.0.11", 53, 3, 8, 20).out(), own=own())
fl = [lab.tool(lab.c, "flood", "udp", f"10.96.1.{i}", 53, "10.128.0.0", 20000, 10, PPS // NS, SECS) for i in range(NS)]
time.sleep(1)
t = lab.tool(lab.c, "short", "10.96.0.10", 80, 4, 100, 3000); u = lab.tool(lab.c, "udprr", "10.96.0.11", 53, 4.5, 8, 20)
o = own(); mid = lab.ps(); ss = lab.node("sh", "-c", "ss -Hun | wc -l").stdout.strip(); ct = lab.node("sysctl", "-n", "net.netfilter.nf_conntrack_count").stdout.strip()
m = {k: v for k, v in lab.metrics('UDP|descriptors').items() if v}
t, u = t.out(), u.out(); f = [x.out() for x in fl]
time.sleep(5)
lab.one()
later = lab.ps(); rec = lab.tool(lab.c, "udprr", "10.96.0.11", 53, 3, 8, 20).out()
ok = t["ok"] >= 396 and u["lost"] <= 0.02 * u["sent"] and o["err"] == 0 and o["lost"] == 0 and later["fds"] < before["fds"] + 50 and rec["lost"] == 0
report("udp_flood", ok, pps=PPS, services=NS, base=base, tcp=t, other_udp=u, nodes_own=o, flood=f, before=before, mid=mid, later=later, udp_sockets=ss, conntrack=ct, metrics=m, recovered=rec)
