"""Bytes of a UDP Service are counted while its flows are open: after 20,000 small answers IN and OUT are not 0."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(); sluice(); want(udp("10.96.0.10") != "lost", "it serves"); ss = [sock("c", socket.SOCK_DGRAM) for _ in range(20)]; n = 0
for s in ss: s.connect(("10.96.0.10", 53)); s.settimeout(2)
for k in range(1000):
    for s in ss: s.send(b"q" * 40)
    for s in ss:
        try: s.recv(2048); n += 1
        except OSError: pass
time.sleep(1.5); r = json.loads(ctl("services", "default/dns", "-o", "json").stdout); print(ctl("services", "default/dns").stdout)
text = json.dumps(r); print(n, "answers;", text[:700]); cols = ctl("services", "default/dns", "--no-headers").stdout.split(); print(cols)
m = {l.rsplit(" ", 1)[0]: l.rsplit(" ", 1)[1] for l in get("n", "127.0.0.1", 10249, "/metrics")[1].splitlines() if "bytes" in l and "dns" in l}; print(m)
t = ctl("services", "default/dns").stdout.splitlines(); h = t[0]; row = t[1]; io = row[h.index(" IN "):h.index("FAMILY")].split(); want(io != ["0", "0"] and len(io) >= 2, f"IN and OUT are {io} after {n} answers of 43 bytes, while flows are open")
[s.close() for s in ss]
done()
