"""Method ewma with identical endpoints: none starves, neither with one request after the other nor with several clients at a time, in user space and on path queue."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed()
def round(host, n, clients, pause=0):
    c = collections.Counter(); lock = threading.Lock()
    def client():
        for _ in range(n // clients):
            r = ask(host, say=b"x"); time.sleep(pause)
            with lock: c[r] += 1
    ts = [threading.Thread(target=client) for _ in range(clients)]; [t.start() for t in ts]; [t.join() for t in ts]; return c
sluice(); want(ask("10.96.0.10") in pods, "it serves")
for path, host, who in (("userspace", "10.96.0.11", ("p1", "p2")), ("userspace", "10.96.0.10", ("p1", "p2", "p3")), ("queue", "10.96.0.12", ("p1", "p2", "p3"))):
    for clients, pause in ((1, 0), (1, 0.02), (8, 0)):
        shares = []; round(host, 30, 1)
        for k in range(3): c = round(host, 160, clients, pause); shares.append([c.get(p, 0) for p in who])
        total = [sum(s[i] for s in shares) for i in range(len(who))]
        want(min(total) >= 480 / len(who) / 3 and max(total) <= 480 * (0.75 if len(who) == 2 else 0.6), f"{path}, {len(who)} endpoints, {clients} clients{', a pause between requests' if pause else ''}: {total} of 480, in rounds {shares}")
done()
