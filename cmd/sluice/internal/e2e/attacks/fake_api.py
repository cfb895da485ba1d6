"""An API server that flaps, lies and drips: what was served stays served; it recovers; memory stays bounded."""
import sys
if len(sys.argv) > 2 and sys.argv[1] == "serve":
    import http.server, json, socketserver, time, os
    mode = lambda: open(sys.argv[3]).read().strip()
    def meta(n, **k): return {"name": n, "namespace": "default", "uid": "u-" + n, "resourceVersion": "5", **k}
    SVC = [{"metadata": meta("web"), "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": [{"name": "p80", "port": 80, "targetPort": 8080, "protocol": "TCP"}]}}]
    EPS = [{"metadata": meta("web-1", labels={"kubernetes.io/service-name": "web"}), "addressType": "IPv4", "endpoints": [{"addresses": ["10.77.2.11"], "conditions": {"ready": True}}], "ports": [{"name": "p80", "port": 8080, "protocol": "TCP"}]}]
    NODE = [{"metadata": {"name": "node", "uid": "n", "resourceVersion": "5"}, "spec": {}, "status": {"addresses": [{"type": "InternalIP", "address": "10.77.1.1"}]}}]
    class H(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def log_message(self, *a): pass
        def do_POST(self): self.rfile.read(int(self.headers.get("Content-Length") or 0)); self.send_response(201); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{}")
        def do_GET(self):
            m = mode(); kind, items, api = ("Service", SVC, "v1") if "/services" in self.path else ("EndpointSlice", EPS, "discovery.k8s.io/v1") if "/endpointslices" in self.path else ("Node", NODE, "v1")
            self.close_connection = True
            def head(code=200, ct="application/json", n=None): self.send_response(code); self.send_header("Content-Type", ct); n is not None and self.send_header("Content-Length", str(n)); self.send_header("Connection", "close"); self.end_headers()
            try:
                if "sendInitialEvents" in self.path and m in ("ok", "watchjunk"):
                    b = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Invalid","message":"sendInitialEvents is forbidden","code":422}'; head(422, n=len(b)); self.wfile.write(b); return
                if m == "drop": self.connection.close(); return
                if m == "500": head(500, n=0); return
                if m == "429": self.send_response(429); self.send_header("Retry-After", "1"); self.send_header("Content-Length", "0"); self.end_headers(); return
                if m == "garbage": head(n=5000); self.wfile.write(os.urandom(5000)); return
                if m == "protobuf_garbage": head(ct="application/vnd.kubernetes.protobuf", n=5004); self.wfile.write(b"k8s\0" + os.urandom(5000)); return
                if m == "html": head(ct="text/html", n=20); self.wfile.write(b"<html>captive</html>"); return
                if m == "nulls": b = b'{"kind":"%sList","apiVersion":"%s","metadata":null,"items":[null,{},{"spec":null},{"metadata":{"name":""}}]}' % (kind.encode(), api.encode()); head(n=len(b)); self.wfile.write(b); return
                if m == "endless": head(); t = time.time(); self.wfile.write(b'{"kind":"%sList","apiVersion":"%s","metadata":{"resourceVersion":"9"},"items":[' % (kind.encode(), api.encode())); n = 0; b = b" " * 65536
                if m == "endless":
                    while time.time() - t < 6 and n < 800e6: self.wfile.write(b); n += len(b)
                    return
                if "watch=" in self.path:
                    head()
                    if m == "watchjunk":
                        for l in (b'{"type":"ADDED","object":null}\n', b'{"type":"NONSENSE","object":{}}\n', b'{"type":"MODIFIED","object":{"kind":"%s","apiVersion":"%s","metadata":{"name":"web","namespace":"default"}}}\n' % (b"Pod", b"v1"), b'{"type":\n', os.urandom(100) + b"\n"): self.wfile.write(l)
                        return
                    while mode() == m: time.sleep(.1)
                    return
                b = json.dumps({"kind": kind + "List", "apiVersion": api, "metadata": {"resourceVersion": "9"}, "items": [{"kind": kind, "apiVersion": api, **x} for x in items]}).encode()
                if m == "half": head(n=len(b)); self.wfile.write(b[:len(b) // 2]); return
                if m == "slow":
                    head(n=len(b))
                    for i in range(len(b)): self.wfile.write(b[i:i + 1]); self.wfile.flush(); time.sleep(.01)
                    return
                head(n=len(b)); self.wfile.write(b)
            except OSError: pass
    class S(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True; allow_reuse_address = True; request_queue_size = 128
    S(("127.0.0.1", int(sys.argv[2])), H).serve_forever()
from lab import *
lab = Lab(); lab.pods(tcp=[8080])
mf = os.path.join(lab.dir, "mode"); setmode = lambda m: open(mf, "w").write(m)
setmode("ok"); lab.spawn(lab.n, "python3", os.path.abspath(__file__), "serve", 6443, mf); time.sleep(.7)
lab.start("--master", "http://127.0.0.1:6443", "--hostname-override", "node", "--kube-api-content-type", "application/json", "--kube-api-qps=-1", manifests=False)
print("at first", lab.one()); ok = True
for m in "drop 500 429 garbage protobuf_garbage html nulls half slow watchjunk endless".split():
    c0 = lab.ps().get("cpu_s", 0); setmode(m); time.sleep(3.5 if m != "endless" else 9); w = lab.one(); setmode("ok"); t = time.time(); p = lab.ps(); alive = lab.sl.p.poll() is None
    if m == "nulls": time.sleep(1)
    while lab.one(timeout=300) != "ok" and time.time() - t < 40: time.sleep(.2)
    r = round(time.time() - t, 1); last = [l[25:200] for l in lab.log().splitlines() if "WARN" in l or "ERROR" in l or "panic" in l][-1:]
    print(m, dict(alive=alive, web_meanwhile=w, back_after_s=r, cpu=round(p.get("cpu_s", 0) - c0, 2), rss=p.get("rss_mb"), hwm=p.get("hwm_mb"), log=last)); ok &= alive and (w == "ok" or m == "nulls") and (r < 15 or m == "nulls")
    if not alive: break
report("fake_api", ok, loglines=len(lab.log().splitlines()), end=lab.ps())
