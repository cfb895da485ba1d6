"""A Service of many ports on a kernel path, and one that flaps between paths, must not delay the changes of others."""
from services import *

PORTS, ENDPOINTS = int(os.environ.get("PORTS", 3000)), int(os.environ.get("ENDPOINTS", 10))
PATHS = os.environ.get("PATHS", "queue nftables iptables").split()
BOUND = 2  # seconds
lab = Lab2()
for i in (11, 12):
    lab.who(f"10.77.2.{i}", 9090)


def mine(address):
    return asvc("mine", "10.96.0.10", 80, [address], 9090, ns="m")


def big(path, turn):
    addresses = [f"10.88.0.{1 + turn + i}" for i in range(ENDPOINTS)]
    ports = [(1000 + i, 20000 + i) for i in range(PORTS)]
    return asvc("big", "10.96.1.1", 0, addresses, ports=ports, ann={"data-path": path}, ns="evil")


def until(done):
    """how many seconds pass until it is done."""
    start = time.time()
    while not done() and time.time() - start < 30:
        time.sleep(.03)
    return round(time.time() - start, 2)


def changed():
    """until a Service in user space has another endpoint."""
    changed.turn ^= 1
    address = f"10.77.2.{11 + changed.turn}"
    lab.manifest(mine(address))
    return until(lambda: lab.ask("10.96.0.10", 80, timeout=1) == [address])


def added():
    """until a new Service is served."""
    added.n += 1
    ip = f"10.96.7.{added.n}"
    lab.manifest(asvc(f"new{added.n}", ip, 80, ["10.77.2.11"], 9090, ns="m"), f"new{added.n}.yaml")
    return until(lambda: lab.ask(ip, 80, timeout=.3) == ["10.77.2.11"])


changed.turn = added.n = 0
lab.manifest(mine("10.77.2.11"))
lab.start()
took = {"calm": [changed(), added()]}
for path in PATHS:
    lab.manifest(big(path, 0), "big.yaml")
    took[path] = [changed(), added()]
    for turn in range(1, 5):
        lab.manifest(big(path, turn), "big.yaml")
        took[path] += [changed(), added()]
    os.unlink(lab.man + "/big.yaml")
    took[path] += [changed(), added()]

over = threading.Event()


def flap():
    paths = ["userspace"] + PATHS
    turn = 0
    while not over.wait(.1):
        turn += 1
        ports = [(1000 + i, 9090) for i in range(200)]
        lab.manifest(asvc("flap", "10.96.1.2", 0, ["10.77.2.11"], ports=ports, ann={"data-path": paths[turn % len(paths)]},
                          ns="evil"), "flap.yaml")


flapping = threading.Thread(target=flap)
flapping.start()
took["flap"] = [f() for _ in range(4) for f in (changed, added)]
over.set()
flapping.join()
report("big_paths", all(t < BOUND for all in took.values() for t in all), seconds=took, ps=lab.ps())
