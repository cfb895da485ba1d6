"""A UDP server that is dead stays out while it is dead: it does not come back every 30 s to take queries that are lost."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed()
for k in range(11, 19): sh("ip", "-n", PFX + "c", "addr", "add", f"10.77.0.{k}/24", "dev", "eth0")
sluice(); want(udp("10.96.0.10") != "lost", "it serves"); pods["p2"].answer = False; lost = []; t0 = time.time(); n = 0
while time.time() - t0 < 100:
    for k in range(11, 19):
        s = sock("c", socket.SOCK_DGRAM); s.bind((f"10.77.0.{k}", 0)); r = udp("10.96.0.10", s=s, data=b"%d" % n, timeout=0.4); s.close(); n += 1
        if r == "lost": lost.append(round(time.time() - t0, 1))
    time.sleep(0.15)
print("lost at", lost, "of", n, "queries"); print(ctl("events").stdout[-800:]); late = [x for x in lost if x > 40]
want(bool(lost) and len([x for x in lost if 15 < x < 28]) == 0, "the silent server is found and taken out"); want(not late, f"after 40 s no query is lost any more: {len(late)} are")
done()
