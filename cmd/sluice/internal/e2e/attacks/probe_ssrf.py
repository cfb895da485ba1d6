"""Through endpoints, external IPs and checks nobody gets to the node's loopback or the metadata address, in any spelling; and checks do not follow a redirect, nor pass on what an endpoint answers."""
from services import *
lab = Lab2(); lab.pods(tcp=[8080])
lab.exec(lab.n, "ip", "addr", "add", "169.254.169.254/32", "dev", "lo"); lab.exec(lab.n, "ip", "-6", "addr", "add", "fe80::1234/128", "dev", "lo", check=False); lab.exec(lab.n, "ip", "-6", "addr", "add", "fd00:ec2::254/128", "dev", "lo")
LISTEN = r'''
import socket,threading,sys,time
hits=open(sys.argv[1],"a",buffering=1)
def l(ip,port):
    fam=socket.AF_INET6 if ":" in ip else socket.AF_INET
    try: s=socket.socket(fam); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind((ip,port)); s.listen(99)
    except OSError as e: hits.write("cannot %s %s\n"%(ip,e)); return
    while 1:
        c,f=s.accept(); hits.write("%s %d from %s\n"%(ip,port,f[0])); c.settimeout(1)
        try: c.recv(999); c.sendall(b"HTTP/1.1 401 SECRETBANNER\r\nContent-Length: 9\r\n\r\nTOPSECRET")
        except OSError: pass
        c.close()
for ip in ("127.0.0.1","127.0.0.53","169.254.169.254","::1","fe80::1234","fd00:ec2::254"):
    for p in (2379,80): threading.Thread(target=l,args=(ip,p),daemon=True).start()
time.sleep(600)
'''
hf = lab.dir + "/hits"; open(hf, "w").close(); lab.spawn(lab.n, sys.executable, "-c", LISTEN, hf)
REDIR = r'''
import socket
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(("10.77.2.13",8090)); s.listen(9)
while 1:
    c,_=s.accept()
    try: c.recv(999); c.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:2379/\r\nContent-Length: 0\r\n\r\n")
    except OSError: pass
    c.close()
'''
lab.spawn(lab.p, sys.executable, "-c", REDIR)
SSH = r'''
import socket
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(("10.77.2.14",22)); s.listen(9)
while 1:
    c,_=s.accept()
    try: c.sendall(b"SSH-2.0-SECRETBANNER_9.9\r\n"); c.recv(99)
    except OSError: pass
    c.close()
'''
lab.spawn(lab.p, sys.executable, "-c", SSH)
P = '{httpGet: {path: /, port: 2379}, periodSeconds: 1, failureThreshold: 1}'
adr = ["127.0.0.1", "127.0.0.53", "127.1", "0177.0.0.1", "2130706433", "0.0.0.0", "169.254.169.254", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "fe80::1234", "64:ff9b::7f00:1", "fd00:ec2::254", "::", "localhost", "127.0.0.1%lo"]
lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080) + asvc("redir", "10.96.2.1", 80, ["10.77.2.13"], 8090, ann={"readiness-probe": '{httpGet: {path: /, port: 8090}, periodSeconds: 1, failureThreshold: 1}'}) + asvc("banner", "10.96.2.2", 80, ["10.77.2.14", "10.77.2.15"], 22, ann={"readiness-probe": '{httpGet: {path: /, port: 22}, periodSeconds: 1, failureThreshold: 1}'}))
lab.node("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1"); lab.start(); time.sleep(1)
for i, a in enumerate(adr):
    six = ":" in a; t = asvc(f"x{i}", f"10.96.1.{i + 1}" if not six else f"fd96::{i + 1:x}", 80, [a], 2379, ann={"readiness-probe": P})
    lab.manifest(t, f"x{i}.yaml")
time.sleep(5)
for i, a in enumerate(adr):
    ip = f"10.96.1.{i + 1}" if ":" not in a else f"fd96::{i + 1:x}"
    for ns in (lab.n, lab.c) if ":" not in a else (lab.n,): lab.ask(ip, 80, timeout=.4, ns=ns)
time.sleep(.5); hits = sorted(set(l.split(" from")[0] for l in open(hf).read().splitlines() if not l.startswith("cannot")))
bad = [h for h in hits if not h.startswith("fd00:ec2")]
ev = lab.cli("events").stdout + lab.log()
seen = [x for x in ("SECRETBANNER", "TOPSECRET") if x in ev]
i = ev.find("SECRETBANNER"); 
report("ssrf_loopback_and_metadata", not bad, reached=hits, notes="fd00:ec2::254 is an address as any other")
report("ssrf_answer_in_events", not seen, seen=seen, line=ev[max(0, i - 200):i + 60] if i >= 0 else "")
# external IPs: the node's loopback, its own ports, broadcast
m = ""
for j, e in enumerate(["127.0.0.1", "127.0.0.2", "169.254.169.254", "255.255.255.255", "224.0.0.1", "0.0.0.0", "10.77.1.255", "10.77.1.1"]):
    lab.manifest(asvc(f"e{j}", f"10.96.3.{j + 1}", 10249, ["10.77.2.11"], 8080, spec={"externalIPs": [e]}, ports=[(10249, 8080), (10256, 8080)]), f"e{j}.yaml")
time.sleep(2); own = lab.node("curl", "-s", "-m", "2", "http://127.0.0.1:10249/healthz", check=False).stdout[:60]; hz = lab.exec(lab.c, "curl", "-s", "-m", "2", "http://10.77.1.1:10256/livez", check=False).stdout[:60]; hzn = lab.node("curl", "-s", "-m", "2", "http://10.77.1.1:10256/livez", check=False).stdout[:60]
log = [l[25:230] for l in lab.log().splitlines() if "externalIP" in l][:6]
ok3 = "ok" in own.lower() or "{" in own
report("external_ip_own_ports", ok3 and "{" in hzn, note="as kube-proxy does", own_metrics=own, livez_from_outside=hz, livez_from_node=hzn, log=log)
sys.exit(0 if not bad and not seen and ok3 and "{" in hzn else 1)
