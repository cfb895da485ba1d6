"""The log's reader stands still (a full pipe at stderr, as with a container runtime whose disk is full): Services go on, changes come into force,
probes are answered, an upgrade and a stop work."""
from services import *
import fcntl
lab = Lab2(); lab.pods(tcp=[8080])
for i in (11, 12, 13): lab.who(f"10.77.2.{i}", 9090)
time.sleep(.4)
base = svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080)
def noisy(k, n=300): return "".join(asvc(f"n{k}-{i}", f"10.96.{4 + i // 250}.{1 + i % 250}", 80, ["10.77.2.12"], 8080, ann={"scheduler": "no-such-%d-%s" % (k, "x" * 200), "hold": "-1s", "drain": "???" * 40}) for i in range(n))
lab.manifest(base); lab.manifest(asvc("who", "10.96.0.11", 80, ["10.77.2.11"], 9090), "who.yaml")
# started by hand: stderr and stdout are a pipe that nobody reads
r, w = os.pipe(); fcntl.fcntl(w, 1031, 4096)
inner = f"mount --make-rprivate / && mount --bind {lab.run} /run && mkdir -p /run/sluice && chmod 700 /run/sluice\nexec '{SLUICE}' --manifests {lab.man} --handover-socket /run/sluice/handover.sock --v {os.environ.get('V', '0')}"
lab.sllog = os.path.join(lab.dir, "none"); open(lab.sllog, "w").close()
p = subprocess.Popen(["unshare", "-m", "ip", "netns", "exec", lab.n, "sh", "-ec", inner], stdout=w, stderr=w, stdin=subprocess.DEVNULL); lab.sl = Proc(p, lab.sllog); lab.procs.append(lab.sl); os.close(w)
if os.environ.get("READ"):   # the control: someone reads
    threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(r, 65536), b"")], daemon=True).start()
lab.wait_serving(); time.sleep(1)
rr = lab.tool(lab.c, "rr", "10.96.0.10", 80, 40, 64, 8)
for k in range(6):   # fills the pipe
    lab.manifest(noisy(k), "noise.yaml"); time.sleep(.7)
out = {"new": lab.tool(lab.c, "short", "10.96.0.10", 80, 3, 50, 2000).out()}
lab.manifest(asvc("who", "10.96.0.11", 80, ["10.77.2.13"], 9090), "who.yaml"); t = time.time(); took = None
while time.time() - t < 10:
    if lab.ask("10.96.0.11", 80) == ["10.77.2.13"]: took = round(time.time() - t, 2); break
    time.sleep(.1)
lab.manifest(asvc("late", "10.96.0.12", 80, ["10.77.2.12"], 9090), "late.yaml"); t = time.time(); added = None
while time.time() - t < 10:
    if lab.ask("10.96.0.12", 80, timeout=.5) == ["10.77.2.12"]: added = round(time.time() - t, 2); break
    time.sleep(.1)
livez = lab.node("curl", "-sS", "-m", "3", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:10256/livez", check=False).stdout
status = lab.cli("status", timeout=20).returncode
lz = {}
if added is None and os.environ.get("LONG"):
    for w_ in (30, 60, 90, 120, 150): time.sleep(30); lz[w_] = lab.node("curl", "-s", "-m", "3", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:10256/livez", check=False).stdout + " " + lab.node("curl", "-s", "-m", "3", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:10256/healthz", check=False).stdout
    print("livez healthz later:", lz)
pid = lab.pid()
try: u = lab.upgrade(timeout=25); up = (u.returncode, (u.stdout + u.stderr)[-160:])
except subprocess.TimeoutExpired: up = "no answer in 25 s"
new = lab.tool(lab.c, "short", "10.96.0.10", 80, 2, 50, 2000).out()
pid2 = lab.pid(); t = time.time(); os.kill(pid2, 15); ended = None
while time.time() - t < 45:
    try:
        if open(f"/proc/{pid2}/stat").read().rsplit(")", 1)[1].split()[0] == "Z": ended = round(time.time() - t, 1); break
    except OSError: ended = round(time.time() - t, 1); break
    time.sleep(.2)
rro = rr.out()
wchan = ""
K = ("ok", "refused", "reset", "timeout")
okd = out["new"]["ok"] >= 148 and new["ok"] >= 97
report("stderr_stall_data_path", okd, new={k: out["new"][k] for k in K}, after_upgrade={k: new[k] for k in K}, open_connections={k: rro.get(k) for k in ("err", "stuck_ms", "n")})
report("stderr_stall_changes", took is not None and added is not None, endpoint_changed_after_s=took, service_added_after_s=added, livez=livez, status_rc=status)
report("stderr_stall_upgrade", isinstance(up, tuple) and up[0] == 0, upgrade=up, sigterm_ended_after_s=ended)
sys.exit(0 if okd and took is not None and added is not None and isinstance(up, tuple) and up[0] == 0 else 1)
