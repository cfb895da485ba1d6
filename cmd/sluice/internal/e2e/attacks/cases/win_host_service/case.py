"""What the node itself listens on at every address (0.0.0.0) is not reached at the addresses of Services, in any mode: neither at a cluster IP nor at an external IP."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(2); pod("n", 9000, "host", udp=False)
for mode in ("userspace", "nftables", "iptables", "winuserspace", "queue"):
    p = sluice(mode=mode); time.sleep(0.5); want(ask("10.96.0.10") in pods, f"{mode}: it serves")
    for a in ("10.96.0.10", "198.51.100.7"):
        for frm in ("c", "p1"): r = ask(a, 9000, frm=frm, timeout=0.7); want(r != "host", f"{mode}: {a}:9000 from {frm}: {r}")
    p.terminate(); p.wait(40); sh(SLUICE, "--cleanup", ns="n", check=False); LOG.unlink(missing_ok=True)
done()
