"""A tenant's readiness probes of silent endpoints must not keep another tenant's probes from being made in time."""
from services import *
N, NSS = int(os.environ.get("N", 60)), int(os.environ.get("NAMESPACES", 3))
HTTP = r'''
import http.server,sys,os
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = not os.path.exists(sys.argv[3]); self.send_response(200 if ok else 503); self.send_header("Content-Length","0"); self.end_headers()
    def log_message(self,*a): pass
http.server.ThreadingHTTPServer((sys.argv[1],int(sys.argv[2])),H).serve_forever()
'''
def go(attack):
    lab = Lab2(); f = lab.dir + "/sick"
    lab.spawn(lab.p, sys.executable, "-c", HTTP, "10.77.2.11", 8081, f); lab.spawn(lab.p, sys.executable, "-c", HTTP, "10.77.2.12", 8081, lab.dir + "/never")
    for i in (11, 12): lab.who(f"10.77.2.{i}", 9090)
    lab.exec(lab.p, "iptables", "-A", "INPUT", "-p", "tcp", "--dport", "7777", "-j", "DROP")
    time.sleep(.6)
    m = asvc("victim", "10.96.0.10", 80, ["10.77.2.11", "10.77.2.12"], 9090, ann={"readiness-probe": '{httpGet: {path: /, port: 8081}, periodSeconds: 1, failureThreshold: 2}'})
    if attack:
        for i in range(N * NSS):
            m += asvc(f"evil{i}", f"10.96.{8 + i // 250}.{1 + i % 250}", 80, [f"10.77.2.{13 + i % 10}"], 7777, ns=f"evil{i % NSS}", ann={"readiness-probe": '{tcpSocket: {port: 7777}, periodSeconds: 1, timeoutSeconds: 10}'})
    lab.manifest(m); lab.start(); time.sleep(15 if attack else 4)
    open(f, "w").close(); t = time.time(); out = None
    while time.time() - t < 110:
        a = lab.ask("10.96.0.10", 80, n=6)
        if "10.77.2.11" not in a: out = round(time.time() - t, 1); break
        time.sleep(.25)
    os.unlink(f); t = time.time(); back = None
    while time.time() - t < 60:
        if "10.77.2.11" in lab.ask("10.96.0.10", 80, n=6): back = round(time.time() - t, 1); break
        time.sleep(.25)
    m = lab.metrics("sluice_deferred|sluice_endpoints_excluded"); lab.close(); lab.procs = []
    return out, back, m
calm = go(False); under = go(True)
ok = under[0] is not None and under[0] < 10 and under[1] is not None and under[1] < 10
report("checks_starve", ok, period_s=1, failure_threshold=2, alone=dict(out_after_s=calm[0], back_after_s=calm[1]), beside=dict(attackers_services=N * NSS, namespaces=NSS, out_after_s=under[0], back_after_s=under[1]), metrics=under[2])
sys.exit(0 if ok else 1)
