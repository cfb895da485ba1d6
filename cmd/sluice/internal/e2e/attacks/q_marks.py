"""Path queue knows endpoints by bits 16-31 of the packet's mark. Another program (Calico's default mask is 0xffff0000) marks packets before:
must not lead a client of one Service to an endpoint of another, while Sluice runs, and while it does not (kill -9, SIGSTOP)."""
from services import *
lab = Lab2()
for i in (11, 12, 13, 14): lab.who(f"10.77.2.{i}", 9090)
time.sleep(.5)
m = asvc("aaa", "10.96.0.10", 80, ["10.77.2.11", "10.77.2.12"], 9090, ann={"data-path": "queue"}) + asvc("zzz", "10.96.0.20", 80, ["10.77.2.13", "10.77.2.14"], 9090, ann={"data-path": "queue"}, ns="other")
lab.manifest(m); lab.start(); time.sleep(1.5)
print(lab.node("nft", "list", "map", "ip", "sluice-queue", "numbered", check=False).stdout[:600] or lab.node("nft", "list", "tables").stdout)
ok = True
def case(name, want):
    global ok
    r = {}
    for mk in (0x10000, 0x20000, 0x30000, 0x40000, 0x70000, 0xffff0000, 0xfffe0000):
        lab.node("iptables", "-t", "mangle", "-F", "PREROUTING"); lab.node("iptables", "-t", "mangle", "-A", "PREROUTING", "-i", "c0", "-p", "tcp", "--dport", "80", "-j", "MARK", "--set-xmark", f"{mk}/0xffff0000")
        r[hex(mk)] = count(lab.ask("10.96.0.10", 80, n=6, timeout=3))
    lab.node("iptables", "-t", "mangle", "-F", "PREROUTING")
    foreign = {k: v for k, v in r.items() if any(x in ("10.77.2.13", "10.77.2.14") for x in v)}
    broken = {k: v for k, v in r.items() if any(x in ("refused", "reset", "timeout") for x in v)}
    ok &= report("q_marks_" + name, not foreign, led_to_other_service=foreign, failed=broken, all=r)
case("running", 1)
pid = lab.pid(); os.kill(pid, signal.SIGSTOP); time.sleep(.2)
print("stopped, no mark:", count(lab.ask("10.96.0.10", 80, n=3, timeout=3))); 
# the queue is full: the kernel lets packets on, as they are (a process that stands still stands for one that cannot keep up)
lab.node("ip", "route", "add", "198.18.0.0/15", "via", "10.77.1.2"); lab.exec(lab.c, "ip", "route", "add", "blackhole", "198.18.0.0/15")
for ip in ("10.96.0.10", "10.96.0.20"): lab.tool(lab.c, "flood", "syn", ip, 80, "198.18.0.1", 4000, 2, 3000, 1.5).out()
r = {}
for mk in (0x10000, 0x20000, 0x30000, 0x40000):
    lab.node("iptables", "-t", "mangle", "-F", "PREROUTING"); lab.node("iptables", "-t", "mangle", "-A", "PREROUTING", "-i", "c0", "-p", "tcp", "--dport", "80", "-j", "MARK", "--set-xmark", f"{mk}/0xffff0000")
    r[hex(mk)] = count(lab.ask("10.96.0.10", 80, n=4, timeout=2))
lab.node("iptables", "-t", "mangle", "-F", "PREROUTING")
foreign = {k: v for k, v in r.items() if any(x in ("10.77.2.13", "10.77.2.14") for x in v)}
ok &= report("q_marks_queue_full", not foreign, led_to_other_service=foreign, all=r)
os.kill(pid, signal.SIGCONT); time.sleep(.5)
os.kill(lab.pid(), 9); time.sleep(.7)
case("killed", 1)
sys.exit(0 if ok else 1)
