"""A UDP client that never pauses and whose endpoint begins to fail its readiness probe moves to an endpoint that passes, as a new flow would."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(2, servers=False); [pod(f"p{i}", tcp=False) for i in (1, 2)]; ready = {p: pod(p, 9000, p + "-ready", udp=False) for p in ("p1", "p2")}; sluice(); time.sleep(2)
for path, host in (("userspace", "10.96.0.10"), ("queue", "10.96.0.11"), ("nftables", "10.96.0.12")):
    s = sock("c", socket.SOCK_DGRAM); first = udp(host, s=s, data=b"a"); want(first in ("p1", "p2"), f"{path}: before: {first}")
    if first not in ready: continue
    ready[first + "-ready" if first + "-ready" in ready else first].stop(); pods[first].answer = False; t0 = time.time(); n = 0; r = None
    while time.time() - t0 < 12:
        n += 1; r = udp(host, s=s, data=b"b%d" % n, timeout=0.3)
        if r in ("p1", "p2") and r != first: break
    want(r not in (first, "lost"), f"{path}: {first} fails its probe and is silent; after {time.time() - t0:.1f} s the flow gets {r}")
    new = udp(host, data=b"new", timeout=0.5); want(new in ("p1", "p2") and new != first, f"{path}: a new flow gets {new}")
    pods[first].answer = True; ready[first] = pod(first, 9000, first + "-ready", udp=False); s.close(); until(lambda: {udp(host, data=b"%d" % time.time_ns(), timeout=0.3) for _ in range(8)} >= {"p1", "p2"}, 10)
done()
