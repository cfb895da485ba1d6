"""Mode winuserspace: an external IP that is the address of another node does not cut that node off from this one."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(); space("o"); sh("ip", "link", "add", "vo", "netns", PFX + "n", "type", "veth", "peer", "name", "eth0", "netns", PFX + "o")
for who, dev, a in ((PFX + "n", "vo", "10.77.9.1/24"), (PFX + "o", "eth0", "10.77.9.2/24")): sh("ip", "-n", who, "addr", "add", a, "dev", dev); sh("ip", "-n", who, "link", "set", dev, "up")
sh("ip", "-n", PFX + "o", "route", "add", "default", "via", "10.77.9.1"); pod("o", 9000, "other-node")
want(ask("10.77.9.2", 9000, frm="n") == "other-node", "before the start this node reaches the other one"); want(ask("10.77.9.2", 9000, frm="c") == "other-node", "and so does a client behind it")
sluice(mode="winuserspace"); time.sleep(1)
want(ask("10.96.0.10", frm="n") in pods, "the Service is served at its cluster IP")
for frm, who in (("n", "this node"), ("c", "a client behind it")): r = ask("10.77.9.2", 9000, frm=frm); want(r == "other-node", f"{who} reaches the other node at a port that is not the Service's: {r}")
r = ask("10.77.0.1", 10256, frm="o", say=b"GET /healthz HTTP/1.0\r\n\r\n"); want(r.startswith("HTTP/"), f"the other node reaches this one: {r}")
print(sh("ip", "-n", PFX + "n", "-o", "-4", "addr").stdout); print(log()[-800:])
done()
