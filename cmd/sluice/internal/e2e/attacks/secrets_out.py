"""Tokens and passwords of a kubeconfig, of --master's URL and of the environment come out nowhere: log at -v 9, configz, page, API, events, support, a bad kubeconfig's error."""
from services import *
import http.server
lab = Lab2(); K = lab.dir + "/kc"
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(401); self.send_header("Content-Type", "application/json"); b = b'{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized: token SERVERSIDE","code":401}'; self.send_header("Content-Length", str(len(b))); self.end_headers(); self.wfile.write(b)
    do_POST = do_GET
    def log_message(self, *a): pass
port = 18080
def serve():
    with ns_enter(lab.n): s = http.server.ThreadingHTTPServer(("127.0.0.1", port), H)
    s.serve_forever()
threading.Thread(target=serve, daemon=True).start(); time.sleep(.3)
open(K, "w").write(json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": f"http://urluser:URLSECRETPW@127.0.0.1:{port}"}}], "users": [{"name": "u", "user": {"token": "TOKENSECRET123", "username": "", "password": ""}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}))
S = ("TOKENSECRET123", "URLSECRETPW", "ENVSECRETXYZ", "BADKCSECRET", "PROXYPW")
found = {}
def note(k, t):
    s = [x for x in S if x in t]
    if s: i = t.index(s[0]); found[k] = s + [t[max(0, i - 90):i + 40]]
lab.start("--kubeconfig", K, "--v", "9", manifests=False, wait=False, env={"AWS_SECRET_ACCESS_KEY": "ENVSECRETXYZ", "HTTPS_PROXY": "http://u:PROXYPW@127.0.0.1:9"}); time.sleep(6)
note("log -v 9", lab.log())
if lab.alive():
    for u in ("/", "/configz", "/v1/config", "/v1/status", "/v1/events", "/metrics", "/healthz"): note("GET " + u, lab.node("curl", "-sS", "-m", "5", "http://127.0.0.1:10249" + u, check=False).stdout)
    for a in (["status"], ["config"], ["config", "--given"], ["events"], ["config", "-o", "json"]):
        r = lab.cli(*a, timeout=20); note("cli " + " ".join(a), r.stdout + r.stderr)
    t = f"/tmp/sup{os.getpid()}.tgz"; r = lab.cli("support", "--file", t, timeout=60); note("support", sh("sh", "-c", f"tar xzOf {t}; rm -f {t}", check=False).stdout)
    print("support:", (r.stdout + r.stderr)[-150:])
lab.sl.kill()
lab.start("--master", f"http://urluser:URLSECRETPW@127.0.0.1:{port}", "--kubeconfig", K, manifests=False, wait=False); time.sleep(4); note("log --master", lab.log())
if lab.alive():
    for a in (["config", "--given"], ["status"]): r = lab.cli(*a, timeout=20); note("master: cli " + " ".join(a), r.stdout + r.stderr)
    note("master: configz", lab.node("curl", "-sS", "-m", "5", "http://127.0.0.1:10249/configz", check=False).stdout)
    t = f"/tmp/sup{os.getpid()}.tgz"; lab.cli("support", "--file", t, timeout=60); note("master: support", sh("sh", "-c", f"tar xzOf {t}; rm -f {t}", check=False).stdout)
lab.sl.kill()
for bad in ('{"users": [{"name": "u", "user": {"token": "BADKCSECRET", }, BADKCSECRET', 'apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user: "BADKCSECRET"\n', "BADKCSECRET", 'apiVersion: v1\nkind: Config\ncurrent-context: x\nusers:\n- name: u\n  user: {token: BADKCSECRET, tokenn: BADKCSECRET, client-certificate-data: BADKCSECRET}\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]'):
    open(K, "w").write(bad); lab.start("--kubeconfig", K, manifests=False, wait=False); time.sleep(1.5); note("log of bad kubeconfig " + bad[:20], lab.log()); lab.sl.kill()
report("secrets_out", not found, found=found); sys.exit(0 if not found else 1)
