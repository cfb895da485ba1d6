"""More of the lab: Services with annotations, pods that say who they are, the CLI, sockets inside namespaces."""
from lab import *
import socket, threading, ctypes, struct, errno, select

_libc = ctypes.CDLL(None, use_errno=True)

def asvc(name, ip, port, addresses, target=None, proto="TCP", ann=None, ns="default", spec="", slice_ann=None, ports=None, labels=None):
    """Service + EndpointSlice as JSON (which is YAML), with annotations."""
    ports = ports or [(port, target or port)]
    meta = {"name": name, "namespace": ns}
    if ann: meta["annotations"] = {(k if "/" in k else "sluice.io/" + k): v for k, v in ann.items()}
    sp = {"clusterIP": ip, "ports": [{"name": f"p{p}", "port": p, "targetPort": t, "protocol": proto} for p, t in ports]}
    if spec: sp.update(spec)
    o = json.dumps({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": sp}) + "\n---\n"
    fam = "IPv6" if addresses and ":" in addresses[0] else "IPv4"
    m2 = {"name": name + "-1", "namespace": ns, "labels": {"kubernetes.io/service-name": name}}
    if slice_ann: m2["annotations"] = slice_ann
    o += json.dumps({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": m2, "addressType": fam,
                     "ports": [{"name": f"p{p}", "port": t, "protocol": proto} for p, t in ports],
                     "endpoints": [{"addresses": [a]} for a in addresses]}) + "\n---\n"
    return o

class ns_enter:
    """the calling thread is in a network namespace within this block."""
    def __init__(self, name): self.name = name
    def __enter__(self):
        self.old = os.open("/proc/thread-self/ns/net", os.O_RDONLY); new = os.open("/run/netns/" + self.name, os.O_RDONLY)
        if _libc.setns(new, 0x40000000): raise OSError(ctypes.get_errno(), "setns")
        os.close(new)
    def __exit__(self, *_): _libc.setns(self.old, 0x40000000); os.close(self.old)

def nsocket(ns, *a):
    with ns_enter(ns): return socket.socket(*a)

WHO = r'''
import socket,sys,threading,os
ip,port,proto=sys.argv[1],int(sys.argv[2]),sys.argv[3]
fam=socket.AF_INET6 if ":" in ip else socket.AF_INET
if proto=="udp":
    s=socket.socket(fam,socket.SOCK_DGRAM); s.bind((ip,port))
    while 1:
        b,f=s.recvfrom(65535); s.sendto(ip.encode(),f)
s=socket.socket(fam); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind((ip,port)); s.listen(4096)
def one(c):
    try:
        c.sendall(ip.encode()+b"\n")
        while c.recv(65536): c.sendall(ip.encode()+b"\n")
    except OSError: pass
    c.close()
while 1:
    c,_=s.accept(); threading.Thread(target=one,args=(c,),daemon=True).start()
'''

class Lab2(Lab):
    def who(self, ip, port, proto="tcp"):
        """a pod that says its address."""
        p = self.spawn(self.p, sys.executable, "-c", WHO, ip, port, proto); return p
    def cli(self, *args, timeout=30, check=False, ns=None):
        """sluice CLI in the mount namespace of /run: by nsenter to the serving process."""
        pid = self.pid()
        return sh("nsenter", "-t", pid, "-m", "-n", SLUICE, *args, check=check, timeout=timeout)
    def ask(self, ip, port, timeout=2.0, ns=None, n=1, src=None):
        """who answers: list of answers or errors."""
        out = []
        for _ in range(n):
            s = nsocket(ns or self.c, socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM); s.settimeout(timeout)
            try:
                if src: s.bind((src, 0))
                s.connect((ip, port)); b = s.recv(200); out.append(b.decode("latin1").strip() or "eof")
            except ConnectionRefusedError: out.append("refused")
            except ConnectionResetError: out.append("reset")
            except (socket.timeout, TimeoutError): out.append("timeout")
            except OSError as e: out.append("E%s" % e.errno)
            s.close()
        return out
    def uask(self, ip, port, timeout=1.0, ns=None, n=1):
        out = []
        for _ in range(n):
            s = nsocket(ns or self.c, socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(timeout)
            try: s.connect((ip, port)); s.send(b"?"); out.append(s.recv(200).decode("latin1"))
            except (socket.timeout, TimeoutError): out.append("timeout")
            except OSError as e: out.append("E%s" % e.errno)
            s.close()
        return out
    def upgrade(self, timeout=60):
        pid = self.pid()
        return sh("nsenter", "-t", pid, "-m", "-n", SLUICE, "upgrade", "--handover-socket", "/run/sluice/handover.sock", check=False, timeout=timeout)
    def alive(self):
        return bool(self.ps())
def count(l):
    d = {}
    for x in l: d[x] = d.get(x, 0) + 1
    return d
