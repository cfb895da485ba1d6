"""A Service of many ports must not keep others' changes from coming into force: cost per change must not grow with ports squared."""
from lab import *
import threading
lab = Lab(); lab.pods(tcp=[8080]); N = int(os.environ.get("PORTS", 15000))
lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080)); lab.start()
def late():
    """how long until a new Service is served."""
    late.n += 1; ip = f"10.96.3.{late.n}"; lab.manifest(svc(f"l{late.n}", ip, 80, ["10.77.2.11"], 8080), f"l{late.n}.yaml"); t = time.time()
    while lab.one(ip, 80, 250) != "ok" and time.time() - t < 60: pass
    return round(time.time() - t, 2)
late.n = 0
before = [late() for _ in range(3)]; cost = {}
eps = lambda k, n: slices("many", ["10.77.2.%d" % (11 + k % 5)], [(i, 8080) for i in range(1, n + 1)])
for n in (N // 4, N // 2, N):
    lab.manifest(service("many", "10.96.9.2", 1, ports=[(i, 8080) for i in range(1, n + 1)]), "svc.yaml"); lab.manifest(eps(0, n), "eps.yaml"); time.sleep(1)
    while lab.one("10.96.9.2", n, 300) != "ok": pass
    time.sleep(1.5); c = lab.ps()["cpu_s"]; lab.manifest(eps(1, n), "eps.yaml"); time.sleep(6); cost[n] = round(lab.ps()["cpu_s"] - c, 2)   # one endpoint changes
stop = time.time() + 15
def churn():
    k = 0
    while time.time() < stop: k += 1; lab.manifest(eps(k, N), "eps.yaml"); time.sleep(1)
th = threading.Thread(target=churn); th.start(); time.sleep(2); during = [late() for _ in range(3)]; th.join()
report("big_service", max(during) < 2 and cost[N] < 5 * max(.05, cost[N // 4]), new_service_served_after_s=dict(before=before, while_the_big_one_changes=during), cpu_s_of_one_endpoint_change_by_ports=cost, ps=lab.ps())
