"""Path queue: datagrams of different lengths from one port, sent at once, are one flow and go to one endpoint; also where some come in fragments."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

def flow(s, datagrams):
    """Sends them at once from one socket, and says which endpoints got them."""
    tag = os.urandom(6); port = s.getsockname()[1]
    for n in datagrams: s.sendto(tag + b"z" * (n - 6), ("10.96.0.10", 53))
    until(lambda: sum(d[:6] == tag for p in pods.values() for d, _, _ in p.got) == len(datagrams), 1.0, 0.005)
    who = collections.Counter(n for n, p in pods.items() for d, _, q in p.got if d[:6] == tag)
    for p in pods.values(): p.got.clear()
    return who

bed(); sluice(); want(udp("10.96.0.10") != "lost", "it serves")
for what, sizes in (("equal lengths", [60] * 6), ("different lengths", [60, 120, 300, 900, 1200, 30]), ("some in fragments", [60, 4000, 120, 9000, 30, 2500])):
    split = lost = n = 0
    for i in range(150):
        s = sock("c", socket.SOCK_DGRAM); s.bind(("10.77.0.2", 20000 + i)); who = flow(s, sizes); s.close(); n += 1; split += len(who) > 1; lost += len(sizes) - sum(who.values())
    want(split == 0, f"{what}: {split} of {n} flows were split over endpoints, {lost} of {n * len(sizes)} datagrams lost")
    sh("conntrack", "-D", "-p", "udp", ns="n", check=False)
done()
