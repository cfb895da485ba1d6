"""Absurd annotation values change nothing but are reported in few bytes; escape sequences and markup in them reach neither a terminal nor a browser; credentials in a probe do not come out."""
from services import *
lab = Lab2(); lab.pods(tcp=[8080])
V = ["NaN", "-1", "1e999", "9223372036854775807s", "99999999h", "0x10", "", " ", "\u0661\u0662", "１２", "\u202e5s", "5s\u0000".replace("\u0000", ""), "1s1s1s" * 1000, "x" * 1000, "true false", "5s\nfoo: bar", "{", "+5", "5_0", "1.5", "Infinity", "2562047h47m16.854775807s", "-0", "00000000000000000000005"]
W = "scheduler slow-start outlier-ejection readiness-probe udp-responses hold hold-connections max-endpoint-connections max-pending-connections queue-timeout max-connections max-client-connections max-client-connection-rate transparent proxy-protocol access-log on-endpoint-removed connect-timeout connect-attempts retry-refused idle-timeout udp-idle-timeout max-connection-duration half-close-timeout tcp-keepalive tcp-user-timeout data-path no-such-word".split()
m = svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080); n = 0
for i, v in enumerate(V):
    m += asvc(f"v{i}", f"10.96.1.{i + 1}", 80, ["10.77.2.11"], 8080, ann={w: v for w in W}); n += 1
ESC = "\u001b]0;PWNED\u0007\u001b[2J<script>alert(1)</script><img src=x onerror=alert(2)>\u009b31m\r\n2026 FORGED"
m += asvc("esc", "10.96.2.1", 80, ["10.77.2.11"], 8080, ann={"scheduler": ESC, "hold": ESC, "sluice.io/" + "zz": ESC})
m += asvc("sec", "10.96.2.2", 80, ["10.77.2.11"], 8080, ann={"readiness-probe": '{httpGet: {path: "/h?token=SECRETQUERY", httpHeaders: [{name: Authorization, value: "Bearer SECRETHEADER"}]}, periodSeconds: 1, failureThreshold: 1}'})
m += asvc("sec2", "10.96.2.3", 80, ["10.77.2.11"], 8080, ann={"readiness-probe": '{httpGet: {path: "/h", httpHeaders: [{name: Authorization, value: "Bearer SECRETBAD"}], bad: 1}}'})
lab.manifest(m); lab.start(); time.sleep(2)
res = {i: lab.one(f"10.96.1.{i + 1}") for i in range(len(V))}
log = lab.log(); big = len(log)
ok1 = report("absurd_values", all(v == "ok" for v in res.values()) and lab.alive(), not_served={repr(V[i])[:40]: v for i, v in res.items() if v != "ok"}, log_bytes=big, annotations=len(V) * len(W), ignored=lab.metrics("sluice_conditions"))
# 1 MB annotation (the API's limit for all annotations of an object is 256 KiB)
lab.manifest(asvc("mb", "10.96.2.9", 80, ["10.77.2.11"], 8080, ann={w: "y" * (1 << 20) for w in W[:8]}), "mb.yaml"); time.sleep(3)
grown = len(lab.log()) - big; p = lab.ps()
ev = lab.cli("events", "-o", "json").stdout; su = 0
ok2 = report("absurd_1MB", (lab.one("10.96.2.9") == "ok" or "Too long" in lab.log()[big:]) and grown < 200_000 and len(ev) < 4_000_000, served=lab.one("10.96.2.9"), log_grew=grown, events_bytes=len(ev), rss=round(p["rss_mb"]), log=[l[:200] for l in lab.log()[big:].splitlines()][-3:])
bad = {}
def esc(name, text):
    raw = [c for c in ("\x1b", "\x07", "\x9b", "\u202e") if c in text]
    if raw: bad[name] = [repr(c) for c in raw] + [repr(text[max(0, text.index(raw[0]) - 60):text.index(raw[0]) + 40])]
for a in (["services"], ["services", "-o", "wide"], ["endpoints", "-o", "wide"], ["events"], ["status"], ["explain", "10.77.1.2", "default/esc"], ["top", "--once", "--interval", "300ms"], ["services", "-o", "yaml"], ["explain", "10.77.1.2", "default/v10"]):
    r = lab.cli(*a, timeout=20); esc("cli " + " ".join(a), r.stdout + r.stderr)
esc("log", lab.log())
pages = {u: lab.node("curl", "-sS", "-m", "5", "http://127.0.0.1:10249" + u, check=False).stdout for u in ("/", "/?q=%3Cscript%3Ealert(3)%3C/script%3E", "/services", "/v1/services", "/v1/events", "/configz", "/metrics")}
for u, t in pages.items():
    if u.startswith("/v1") or u in ("/metrics", "/configz"): continue
    if "<script>alert" in t or "<img src=x" in t: bad["page " + u] = t[t.find("<script>alert") - 50:][:150]
for l in lab.log().splitlines():
    if l.startswith("2026 FORGED"): bad["log line"] = l
ok3 = report("escape_sequences", not bad, raw=bad)
sec = {}
tgz = f"/tmp/sup{os.getpid()}.tgz"; lab.cli("support", "--file", tgz); texts = {"support": sh("sh", "-c", f"tar xzOf {tgz}; rm -f {tgz}", check=False).stdout, "log": lab.log(), "events": ev}
for u, t in pages.items(): texts["GET " + u] = t
for a in (["services", "-o", "json"], ["explain", "10.77.1.2", "default/sec"], ["endpoints", "-o", "json"], ["services", "-o", "wide"]): texts["cli " + " ".join(a)] = lab.cli(*a).stdout
for k, t in texts.items():
    s = [x for x in ("SECRETQUERY", "SECRETHEADER", "SECRETBAD") if x in t]
    if s: i = t.index(s[0]); sec[k] = s + [t[max(0, i - 80):i + 30]]
ok4 = report("secrets_of_probes", not sec, found=sec)
sys.exit(0 if ok1 and ok2 and ok3 and ok4 else 1)
