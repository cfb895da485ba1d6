"""A tenant's Service must not take what is another's: its cluster IP as external IP, its node port, its endpoints' name in another namespace, the node's own services."""
from services import *
lab = Lab2()
for i in (11, 12, 13, 14): lab.who(f"10.77.2.{i}", 9090); lab.who(f"10.77.2.{i}", 53, "udp")
time.sleep(.5)
ok = True; R = {}
MODES = os.environ.get("MODES", "userspace,queue,nftables,iptables").split(",")
def victim(path): return asvc("victim", "10.96.0.10", 80, ["10.77.2.11"], 9090, ann={"data-path": path}, ns="m", spec={"type": "NodePort", "ports": [{"name": "p80", "port": 80, "targetPort": 9090, "nodePort": 30080, "protocol": "TCP"}]}) + asvc("dns", "10.96.0.53", 53, ["10.77.2.11"], 53, proto="UDP", ns="m", ann={"data-path": path})
def evil(path, name="aaa", ns="a"):
    o = asvc(name, "10.96.9.9", 80, ["10.77.2.12"], 9090, ns=ns, ann={"data-path": path}, spec={"externalIPs": ["10.96.0.10"]})
    o += asvc(name + "u", "10.96.9.10", 53, ["10.77.2.12"], 53, proto="UDP", ns=ns, ann={"data-path": path}, spec={"externalIPs": ["10.96.0.53"]})
    o += asvc(name + "lb", "10.96.9.11", 80, ["10.77.2.12"], 9090, ns=ns, ann={"data-path": path}, spec={"type": "LoadBalancer"}).replace('"spec": {"clusterIP": "10.96.9.11"', '"status": {"loadBalancer": {"ingress": [{"ip": "10.96.0.10"}]}}, "spec": {"clusterIP": "10.96.9.11"')
    o += asvc(name + "node", "10.96.9.13", 80, ["10.77.2.12"], 9090, ns=ns, ann={"data-path": path}, spec={"externalIPs": ["10.77.1.1"], "ports": [{"name": "p80", "port": 30080, "targetPort": 9090, "protocol": "TCP"}]})
    # a slice of another namespace with the label of the victim
    o += json.dumps({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "victim-evil", "namespace": ns, "labels": {"kubernetes.io/service-name": "victim"}}, "addressType": "IPv4", "ports": [{"name": "p80", "port": 9090, "protocol": "TCP"}], "endpoints": [{"addresses": ["10.77.2.12"]}]}) + "\n---\n"
    return o
def look(): return dict(cluster_ip=count(lab.ask("10.96.0.10", 80, n=6)), udp=count(lab.uask("10.96.0.53", 53, n=6)), node_port=count(lab.ask("10.77.1.1", 30080, n=6)))
for vp in MODES:
    for ep in MODES:
        if not (vp == ep or "userspace" in (vp, ep)): continue
        for order in ("victim_first", "evil_first"):
            for f in os.listdir(lab.man): os.unlink(os.path.join(lab.man, f))
            if order == "victim_first": lab.manifest(victim(vp), "v.yaml")
            else: lab.manifest(evil(ep), "e.yaml")
            if not lab.sl: lab.start()
            time.sleep(1.3)
            if order == "victim_first": a = look(); lab.manifest(evil(ep), "e.yaml")
            else: a = None; lab.manifest(victim(vp), "v.yaml")
            time.sleep(2.2); b = look()
            stolen = {k: v for k, v in b.items() if "10.77.2.12" in v}
            down = {k: v for k, v in b.items() if any(x in v for x in ("refused", "reset", "timeout"))}
            R[f"{vp}/{ep}/{order}"] = dict(stolen=stolen, down=down)
S = {k: v for k, v in R.items() if v["stolen"] or v["down"]}
report("hijack_cluster_ip", not any("cluster_ip" in v["stolen"] or "udp" in v["stolen"] or v["down"] for v in S.values()), cases=len(R), affected=S)
lines = [l[25:260] for l in lab.log().splitlines() if "WARN" in l and ("10.96.0.10" in l or "30080" in l or "refus" in l or "taken" in l)]
report("hijack_says_so", bool(lines), log=lines[:4])
sys.exit(0 if not S else 1)
