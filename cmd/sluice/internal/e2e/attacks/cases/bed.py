#!/usr/bin/env python3
"""The bed of the cases: a client, a node and pods, each in a network namespace of its own, and Sluice on the node.
The first argument is the program."""
import atexit, collections, contextlib, ctypes, json, os, pathlib, re, select, shutil, signal, socket, struct, subprocess, sys, tempfile, threading, time
HERE = pathlib.Path(sys.argv[0]).resolve().parent
SLUICE = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else sys.exit("usage: case.py PROGRAM")
TMP = pathlib.Path(tempfile.mkdtemp(prefix="case")); MAN = TMP / "manifests"; PFX = "k%d" % os.getpid()
API = TMP / "api.sock"; LOG = TMP / "sluice.log"; spaces, procs, pods, libc = [], [], {}, ctypes.CDLL(None, use_errno=True)
if (HERE / "manifests").is_dir(): shutil.copytree(HERE / "manifests", MAN)
else: MAN.mkdir()

def sh(*a, ns=None, check=True, timeout=60, **k):
    a = [str(x) for x in a]; a = (["ip", "netns", "exec", PFX + ns] + a) if ns else a
    p = subprocess.run(a, capture_output=True, text=True, timeout=timeout, **k)
    if check and p.returncode: raise SystemExit("setup: %s: %s" % (" ".join(a)[:100], (p.stderr + p.stdout)[-200:]))
    return p

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
@atexit.register
def down():
    if os.environ.get("KEEP_LOG"): shutil.copy(LOG, os.environ["KEEP_LOG"])
    for p in procs:
        if p.poll() is None:
            p.terminate()
            try: p.wait(5)
            except subprocess.TimeoutExpired: p.kill(); p.wait()
    for n in spaces:                       # what is left inside, as a successor, is of a namespace of this script
        for pid in subprocess.run(["ip", "netns", "pids", n], capture_output=True, text=True).stdout.split():
            if int(pid) != os.getpid():
                with contextlib.suppress(OSError): os.kill(int(pid), 9)
        subprocess.run(["ip", "netns", "del", n], capture_output=True)
    shutil.rmtree(TMP, ignore_errors=True)

class inside:
    """with inside("c"): this thread is in that network namespace."""
    def __init__(self, n): self.n = n
    def __enter__(self):
        self.back = os.open("/proc/thread-self/ns/net", os.O_RDONLY); fd = os.open("/run/netns/" + PFX + self.n, os.O_RDONLY)
        if libc.setns(fd, 0x40000000): raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)
    def __exit__(self, *_): libc.setns(self.back, 0x40000000); os.close(self.back)

def sock(n, kind=socket.SOCK_STREAM, fam=socket.AF_INET, proto=0):
    with inside(n): return socket.socket(fam, kind, proto)

def space(n):
    sh("ip", "netns", "add", PFX + n); spaces.append(PFX + n); sh("ip", "-n", PFX + n, "link", "set", "lo", "up")

def bed(npods=3, servers=True):
    """Client c is 10.77.0.2, node n is 10.77.0.1, pods p1.. are 10.77.I.2 (fd77:I::2); each routes by the node."""
    space("n"); space("c")
    for i, n in enumerate(["c"] + ["p%d" % i for i in range(1, npods + 1)]):
        if n != "c": space(n)
        v = "v%d" % i; sh("ip", "link", "add", v, "netns", PFX + "n", "type", "veth", "peer", "name", "eth0", "netns", PFX + n)
        for who, dev, last in ((PFX + "n", v, 1), (PFX + n, "eth0", 2)):
            sh("ip", "-n", who, "addr", "add", f"10.77.{i}.{last}/24", "dev", dev); sh("ip", "-n", who, "addr", "add", f"fd77:{i}::{last}/64", "dev", dev, "nodad"); sh("ip", "-n", who, "link", "set", dev, "up")
        sh("ip", "-n", PFX + n, "route", "add", "default", "via", f"10.77.{i}.1"); sh("ip", "-n", PFX + n, "-6", "route", "add", "default", "via", f"fd77:{i}::1")
    sh("ip", "-n", PFX + "n", "route", "add", "default", "via", "10.77.0.2"); sh("ip", "-n", PFX + "n", "-6", "route", "add", "default", "via", "fd77:0::2")
    sh("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", ns="n")
    if servers:
        for i in range(1, npods + 1): pod("p%d" % i)

class pod:
    """TCP: says its name and a newline, then echoes until the end of the stream. UDP: answers its name, a space and the datagram."""
    def __init__(self, ns, port=8080, name=None, tcp=True, udp=True, addr="", quiet=False):
        self.ns, self.name, self.got, self.conns, self.open, self.quiet, self.answer = ns, (name or ns).encode(), [], 0, set(), quiet, True
        self.socks = []; pods[name or ns] = self; fam = socket.AF_INET6 if not addr or ":" in addr else socket.AF_INET
        if tcp:
            s = self.t = sock(ns, fam=fam); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((addr or "::", port)); s.listen(1024); self.socks.append(s)
            threading.Thread(target=self.accepts, args=(s,), daemon=True).start()
        if udp:
            s = self.u = sock(ns, socket.SOCK_DGRAM, fam); s.bind((addr or "::", port)); self.socks.append(s); threading.Thread(target=self.datagrams, args=(s,), daemon=True).start()
    def accepts(self, s):
        while True:
            try: c, a = s.accept()
            except OSError: return
            self.conns += 1; self.open.add(c); threading.Thread(target=self.talk, args=(c, a), daemon=True).start()
    def talk(self, c, a):
        try:
            if not self.quiet: c.sendall(self.name + b"\n")
            while (b := c.recv(65536)): c.sendall(b)
        except OSError: pass
        finally: self.open.discard(c); c.close()
    def datagrams(self, s):
        while True:
            try: d, a = s.recvfrom(65536)
            except OSError: return
            if not a: return
            self.got.append((d, a[0].removeprefix("::ffff:"), a[1]))
            with contextlib.suppress(OSError):
                if self.answer: s.sendto(self.name + b" " + d, a)
    def stop(self):
        for s in self.socks:
            with contextlib.suppress(OSError): s.shutdown(socket.SHUT_RDWR)
            s.close()

def put(name, text): t = TMP / "t"; t.write_text(text); t.replace(MAN / name)

def sluice(*args, wait=True, mode=None, folder=MAN, expect=15):
    a = ["ip", "netns", "exec", PFX + "n", SLUICE, "--manifests", str(folder), "--api-socket", str(API), "--hostname-override", "node-a", *(["--proxy-mode", mode] if mode else []), *args]
    p = subprocess.Popen(a, stdout=open(LOG, "ab"), stderr=subprocess.STDOUT); procs.append(p)
    if wait:
        end = time.time() + expect
        while time.time() < end and p.poll() is None and get("n", "127.0.0.1", 10256, "/healthz")[0] != 200: time.sleep(0.05)
        if get("n", "127.0.0.1", 10256, "/healthz")[0] != 200: print("not healthy:", p.poll(), log()[-600:]); 
        time.sleep(0.3)
    return p
def log(): return LOG.read_text() if LOG.exists() else ""
def ctl(*a, timeout=20): return sh(SLUICE, a[0], "--api-socket", API, *a[1:], ns="n", check=False, timeout=timeout)
def page(path="/"): return get("n", "127.0.0.1", 10249, path, accept="text/html")
def get(n, host, port, path, accept="*/*", timeout=3):
    s = sock(n, fam=socket.AF_INET6 if ":" in host else socket.AF_INET); s.settimeout(timeout)
    try:
        s.connect((host, port)); s.sendall(f"GET {path} HTTP/1.0\r\nHost: {'[' + host + ']' if ':' in host else 'localhost'}\r\nAccept: {accept}\r\n\r\n".encode()); b = b""
        while (c := s.recv(65536)): b += c
        return int(b.split()[1]), b.decode(errors="replace")
    except (OSError, IndexError, ValueError) as e: return 0, str(e)
    finally: s.close()

def ask(host, port=80, frm="c", timeout=3, src=None, say=b""):
    """Who answers one connection, or how it fails."""
    s = sock(frm, fam=socket.AF_INET6 if ":" in host else socket.AF_INET); s.settimeout(timeout)
    try:
        if src: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(src)
        s.connect((host, port))
        if say: s.sendall(say)
        return s.makefile("rb").readline().strip().decode() or "closed"
    except ConnectionRefusedError: return "refused"
    except ConnectionResetError: return "reset"
    except TimeoutError: return "timeout"
    except OSError as e: return f"errno {e.errno}"
    finally: s.close()
def turns(n, *a, **k): return collections.Counter(ask(*a, **k) for _ in range(n))
def udp(host, port=53, frm="c", data=b"x", timeout=1.5, s=None, size=None):
    """Who answers one datagram; with s, from that socket."""
    own = s is None; s = s or sock(frm, socket.SOCK_DGRAM, socket.AF_INET6 if ":" in host else socket.AF_INET); s.settimeout(timeout)
    try:
        if own: s.connect((host, port)); s.send(data)
        else: s.sendto(data, (host, port))
        while True:
            r = s.recv(65536); who, _, d = r.partition(b" ")
            if d == data: return who.decode()
    except ConnectionRefusedError: return "refused"
    except TimeoutError: return "lost"
    except OSError as e: return f"errno {e.errno}"
    finally:
        if own: s.close()
def until(f, secs, step=0.1):
    end = time.time() + secs
    while time.time() < end:
        if (r := f()): return r
        time.sleep(step)
    return f()
wrong = []
def want(ok, what):
    print(("right: " if ok else "WRONG: ") + what)
    if not ok: wrong.append(what)
    return ok
def done(): print("RESULT:", "wrong" if wrong else "right"); sys.stdout.flush(); sys.exit(1 if wrong else 0)

