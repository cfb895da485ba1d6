"""An endpoint that leads back to Sluice (its own cluster IP, node port, the node's address, another Service in a ring) must not
multiply one client's connection without bound."""
from lab import *
lab = Lab()
lab.pods(tcp=[8080], udp=[5353])
lab.exec(lab.n, "ip", "route", "add", "default", "via", "10.77.1.2")   # as nodes have
cases = {
 "own_cluster_ip": svc("loop", "10.96.0.66", 80, ["10.96.0.66"], 80),
 "ring_of_two": svc("loop", "10.96.0.66", 80, ["10.96.0.67"], 80) + svc("loop2", "10.96.0.67", 80, ["10.96.0.66"], 80),
 "node_port": svc("loop", "10.96.0.66", 80, ["10.77.2.1"], 30080).replace("targetPort: 30080, protocol: TCP}\nd", "").replace("{name: p80, port: 80, targetPort: 30080, protocol: TCP}", "{name: p80, port: 80, nodePort: 30080, protocol: TCP}").replace("  clusterIP", "  type: NodePort\n  clusterIP"),
 "udp_own_cluster_ip": svc("loop", "10.96.0.66", 80, ["10.96.0.66"], 80, "UDP"),
}
want = sys.argv[2:] or list(cases)
for name in want:
    lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080) + cases[name])
    lab.start(pre="ulimit -n " + os.environ.get("NOFILE", "2000"))
    b = lab.ps(); 
    if name.startswith("udp"): c = lab.tool(lab.c, "udprr", "10.96.0.66", 80, 2.2, 1, 1000)
    else: c = lab.tool(lab.c, "hold", "10.96.0.66", 80, 1, 1, 8)   # ONE client connection
    time.sleep(2)
    m = {k: v for k, v in lab.metrics("sluice_(active|dialling)_connections|sluice_connections_total|sluice_packets_total|descriptors_used|accept_pauses").items() if v}; a = lab.ps()
    g = lab.tool(lab.c, "short", "10.96.0.10", 80, 3, 50, 2000).out()
    r = c.out(); c.kill(); time.sleep(1.5); left = lab.metrics("sluice_active_connections|descriptors_used"); c1 = lab.ps()["cpu_s"]; time.sleep(1)
    g2 = lab.tool(lab.c, "short", "10.96.0.10", 80, 1, 50, 2000).out()
    lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080)); time.sleep(3); deleted = dict(web=lab.one(timeout=1000), **lab.metrics("sluice_active_connections"))
    report("loop_" + name, a["fds"] < b["fds"] + 20 and deleted["web"] == "ok", after_service_deleted=deleted, client=r, fds_before=b["fds"], fds_after_2s=a["fds"], cpu=a["cpu_s"] - b["cpu_s"], metrics=m, other_service={k: g[k] for k in ("ok", "timeout", "p99_ms")}, left=left, cpu_idle=lab.ps()["cpu_s"] - c1, after_client_left={k: g2[k] for k in ("ok", "timeout")}, log=[l for l in lab.log().splitlines() if "loop" in l and "loops" not in l][:3])
    lab.sl.kill(); time.sleep(.3)
