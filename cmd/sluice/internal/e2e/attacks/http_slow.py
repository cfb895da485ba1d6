"""Strangers who open many connections to /healthz (0.0.0.0:10256) must not cost the data path its descriptors."""
from lab import *
N = int(os.environ.get("N", 6000))
lab = Lab()
lab.pods(tcp=[8080])
lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080) + svc("b", "10.96.0.11", 80, ["10.77.2.12"], 8080))
lab.start()
b = lab.ps()
h = lab.tool(lab.c, "hold", "10.77.1.1", 10256, N, 3000, 26)     # sends one byte 'x', then nothing: slowloris
time.sleep(5)
a = lab.ps(); k = lab.tool(lab.c, "hold", "10.96.0.10", 80, 9500, 3000, 9)   # more clients than there are descriptors
time.sleep(4.5)
full = lab.ps(); s = lab.one(timeout=3000); live = lab.node("curl", "-s", "-m", "3", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:10256/livez", check=False).stdout
# a change of Services, and an upgrade, while all is used up
lab.manifest(svc("late", "10.96.0.12", 80, ["10.77.2.11"], 8080) + svc("lateu", "10.96.0.13", 53, ["10.77.2.11"], 5353, "UDP"), "late.yaml"); time.sleep(2)
fd_used = lab.ps().get("fds"); errs = [l[:260] for l in lab.log().splitlines() if "WARN" in l or "ERROR" in l][-4:]
k.out(); time.sleep(4); h.out(40); time.sleep(1)
late = lab.one("10.96.0.12")
report("http_slow", live == "200" and not any("too many open files" in e for e in errs), before=b, during=a, full=full, healthz_conns=N, mem_per_conn_kb=(a["rss_mb"] - b["rss_mb"]) * 1024 / max(1, a["fds"] - b["fds"]), livez_when_full=live, new_when_full=s, fds=fd_used, late_service_after=late, log=errs, later=lab.ps())
r = lab.client("sh", "-c", "python3 - <<'X'\nimport socket,time\ns=socket.create_connection(('10.77.1.1',10256)); s.sendall(b'GET /healthz HTTP/1.1\\r\\nHost: x\\r\\n'); n=0\ntry:\n  while n<4000000: s.sendall(b'A'*1000+b': '+b'b'*1000+b'\\r\\n'); n+=2000\nexcept OSError as e: print('cut after',n,e)\nprint(s.recv(100) if n<4000000 else n)\nX", check=False)
print("huge headers:", r.stdout[:200], r.stderr[-200:])
