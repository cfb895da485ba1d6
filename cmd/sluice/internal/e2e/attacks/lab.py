"""The lab of the attacks: three hosts made of network namespaces (client 10.77.1.2, node 10.77.1.1
and 10.77.2.1, pods 10.77.2.11..), Sluice on the node in a mount namespace of its own /run, tools by advtool.
Needs root, iproute2, iptables, gcc. SLUICE=/path/to/sluice, or the first argument."""
import json, os, re, signal, subprocess, sys, time, atexit, tempfile, shutil, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
TOOL = os.path.join(tempfile.gettempdir(), "advtool-%d" % os.getuid()); SRC = os.path.join(HERE, "advtool.c")
SLUICE = os.environ.get("SLUICE") or (sys.argv[1] if len(sys.argv) > 1 and os.path.exists(sys.argv[1]) else "bin/sluice")
if not os.path.exists(TOOL) or os.path.getmtime(TOOL) < os.path.getmtime(SRC):
    subprocess.run(["gcc", "-O2", "-w", "-o", TOOL, SRC], check=True)

def sh(*cmd, check=True, **kw):
    if len(cmd) == 1 and isinstance(cmd[0], str):
        return subprocess.run(cmd[0], shell=True, check=check, text=True, capture_output=True, **kw)
    return subprocess.run([str(c) for c in cmd], check=check, text=True, capture_output=True, **kw)

def service(name, ip, port, target=None, proto="TCP", extra="", ports=None):
    ports = ports or [(port, target or port)]
    out = f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  clusterIP: {ip}\n{extra}  ports:\n"
    for p, t in ports:
        out += f"  - {{name: p{p}, port: {p}, targetPort: {t}, protocol: {proto}}}\n"
    return out + "---\n"

def slices(name, addresses, ports, proto="TCP", suffix="1"):
    out = (f"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-{suffix}\n  labels: {{kubernetes.io/service-name: {name}}}\n"
           f"addressType: IPv4\nports:\n")
    for p, t in ports:
        out += f"- {{name: p{p}, port: {t}, protocol: {proto}}}\n"
    out += "endpoints:\n" if addresses else "endpoints: []\n"
    for a in addresses:
        out += f"- addresses: [{a}]\n"
    return out + "---\n"

def svc(name, ip, port, addresses, target=None, proto="TCP", extra=""):
    return service(name, ip, port, target, proto, extra) + slices(name, addresses, [(port, target or port)], proto)

class Proc:
    def __init__(self, p, log): self.p, self.log = p, log
    def out(self, timeout=None):
        self.p.wait(timeout)
        t = open(self.log).read()
        try: return json.loads(t.strip().splitlines()[-1])
        except Exception: return {"raw": t}
    def kill(self, sig=signal.SIGKILL):
        if self.p.poll() is None:
            try: self.p.send_signal(sig)
            except ProcessLookupError: pass
        try: self.p.wait(10)
        except subprocess.TimeoutExpired: self.p.kill(); self.p.wait()

class Lab:
    def __init__(self, name=None):
        self.tag = "atk%d" % os.getpid()
        self.dir = tempfile.mkdtemp(prefix=self.tag + "-")
        self.man = os.path.join(self.dir, "manifests"); os.mkdir(self.man)
        self.run = os.path.join(self.dir, "run"); os.mkdir(self.run, 0o700)
        self.procs, self.sl, self.nlog = [], None, 0
        self.c, self.n, self.p = (self.tag + x for x in "cnp")
        atexit.register(self.close)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        for ns in (self.c, self.n, self.p): sh("ip", "netns", "add", ns); sh("ip", "-n", ns, "link", "set", "lo", "up")
        for a, b, dev, ipa, ipb in ((self.c, self.n, "c0", "10.77.1.2/24", "10.77.1.1/24"), (self.p, self.n, "p0", "10.77.2.11/24", "10.77.2.1/24")):
            sh("ip", "link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", dev, "netns", b)
            sh("ip", "-n", a, "addr", "add", ipa, "dev", "eth0"); sh("ip", "-n", b, "addr", "add", ipb, "dev", dev)
            sh("ip", "-n", a, "link", "set", "eth0", "up"); sh("ip", "-n", b, "link", "set", dev, "up")
            sh("ip", "-n", a, "route", "add", "default", "via", ipb.split("/")[0])
        for i in range(12, 31): sh("ip", "-n", self.p, "addr", "add", f"10.77.2.{i}/24", "dev", "eth0")
        self.node("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")
        self.node("sh", "-c", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done")
        for ns in (self.c, self.n, self.p): self.exec(ns, "sysctl", "-qw", "net.ipv4.ip_local_port_range=10240 65000" if ns == self.c else "net.ipv4.ip_local_port_range=32768 60999")

    def exec(self, ns, *cmd, check=True, **kw): return sh("ip", "netns", "exec", ns, *cmd, check=check, **kw)
    def node(self, *cmd, **kw): return self.exec(self.n, *cmd, **kw)
    def client(self, *cmd, **kw): return self.exec(self.c, *cmd, **kw)
    def spawn(self, ns, *cmd, pre=()):
        self.nlog += 1
        log = os.path.join(self.dir, f"out{self.nlog}")
        p = subprocess.Popen([*pre, "ip", "netns", "exec", ns, *[str(c) for c in cmd]], stdout=open(log, "w"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        pr = Proc(p, log); self.procs.append(pr); return pr
    def tool(self, ns, *cmd): return self.spawn(ns, TOOL, *cmd)
    def pods(self, tcp=(), udp=(), mode="echo"):
        for p in tcp: self.tool(self.p, "tcpserve", "0.0.0.0", p, mode)
        for p in udp:   # bound to each address: else answers would come from the first one
            for i in range(11, 18): self.tool(self.p, "udpserve", f"10.77.2.{i}", p, "echo")
        time.sleep(0.3)
    def manifest(self, text, name="a.yaml"):
        tmp = os.path.join(self.dir, "tmp-" + name)
        open(tmp, "w").write(text); os.rename(tmp, os.path.join(self.man, name))
    def start(self, *args, pre="", wait=True, env=None, binary=None, wrap="", manifests=True):
        """pre: shell commands before exec (ulimit and the like)."""
        self.nlog += 1
        self.sllog = os.path.join(self.dir, f"sluice{self.nlog}.log")
        argv = [binary or SLUICE, *(["--manifests", self.man] if manifests else []), "--handover-socket", "/run/sluice/handover.sock", *args]
        inner = (f"mount --make-rprivate / && mount --bind {self.run} /run && mkdir -p /run/sluice && chmod 700 /run/sluice\n{pre}\nexec {wrap} " + " ".join(f"'{a}'" for a in argv))
        p = subprocess.Popen(["unshare", "-m", "ip", "netns", "exec", self.n, "sh", "-ec", inner], stdout=open(self.sllog, "w"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        self.sl = Proc(p, self.sllog); self.procs.append(self.sl)
        if wait: self.wait_serving()
        return self.sl
    def log(self): return open(self.sllog).read()
    def wait_serving(self, timeout=60):
        t = time.time()
        while time.time() - t < timeout:
            if self.sl.p.poll() is not None: raise SystemExit("sluice ended: " + self.log()[-2000:])
            if self.node("curl", "-fsS", "-m", "2", "http://127.0.0.1:10256/healthz", check=False).returncode == 0: return time.time() - t
            time.sleep(0.05)
        raise SystemExit("sluice is not healthy: " + self.log()[-2000:])
    def pid(self):
        """of the process that serves (sh execs it; an upgrade makes a child)."""
        for l in self.node("ss", "-Hxlp", check=False).stdout.splitlines():
            if "sluice.steering" in l:
                m = re.search(r"pid=(\d+)", l)
                if m: return int(m.group(1))
        return self.sl.p.pid
    def metrics(self, pattern=""):
        t = self.node("curl", "-sS", "-m", "5", "http://127.0.0.1:10249/metrics", check=False).stdout
        return {l.rsplit(" ", 1)[0]: float(l.rsplit(" ", 1)[1]) for l in t.splitlines() if l and l[0] != "#" and re.search(pattern, l)}
    def ps(self, pid=None):
        pid = pid or self.pid()
        try:
            s = open(f"/proc/{pid}/status").read(); st = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            return dict(rss_mb=int(re.search(r"VmRSS:\s+(\d+)", s).group(1)) / 1024, hwm_mb=int(re.search(r"VmHWM:\s+(\d+)", s).group(1)) / 1024, threads=int(re.search(r"Threads:\s+(\d+)", s).group(1)),
                        fds=len(os.listdir(f"/proc/{pid}/fd")), cpu_s=(int(st[11]) + int(st[12])) / 100)
        except (FileNotFoundError, ProcessLookupError): return {}
    def one(self, ip="10.96.0.10", port=80, timeout=2000, ns=None):
        """one short connection: 'ok' or what went wrong."""
        r = self.tool(ns or self.c, "short", ip, port, 0.001, 1000, timeout).out()
        for k in ("ok", "refused", "reset", "eof", "timeout", "local"):
            if r.get(k): return k
        return str(r)
    def close(self):
        for p in self.procs[::-1]: p.kill()
        for ns in (self.c, self.n, self.p):
            for pid in sh("ip", "netns", "pids", ns, check=False).stdout.split():
                try: os.kill(int(pid), 9)   # only of the namespaces that this script has made
                except OSError: pass
            sh("ip", "netns", "del", ns, check=False)
        if not os.environ.get("KEEP"): shutil.rmtree(self.dir, ignore_errors=True)

def report(name, ok, **figures):
    print(json.dumps({"check": name, "verdict": "holds" if ok else "BROKEN", **figures}))
    return ok
