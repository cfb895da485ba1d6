"""Hostile SCTP at the packet engine from two sides: at a frontend, at the proxy ports from the client and from the pods."""
from lab import *
sh("gcc", "-O2", "-w", "-o", tempfile.gettempdir() + "/sctp_fuzz", HERE + "/sctp_fuzz.c")
SECS = os.environ.get("SECS", "15")
lab = Lab(); lab.pods(tcp=[8080])
lab.manifest(svc("web", "10.96.0.10", 80, ["10.77.2.11"], 8080) + svc("sig", "10.96.0.40", 3868, ["10.77.2.11", "10.77.2.12"], 3868, "SCTP") + (svc("sig2", "10.96.0.41", 3868, ["10.96.0.41"], 3868, "SCTP") if os.environ.get("LOOP") else ""))
lab.exec(lab.n, "ip", "route", "add", "default", "via", "10.77.1.2")
lab.start("--sctp-engine", "packet")
b = lab.ps(); F = tempfile.gettempdir() + "/sctp_fuzz"
ps = [lab.spawn(lab.c, F, "10.96.0.40", 3868, 6000, SECS, i, "10.77.1.0") for i in (1, 2)] + [lab.spawn(lab.p, F, "10.77.2.1", 3868, 3000, SECS, 3), lab.spawn(lab.c, F, "10.77.1.1", 3868, 3000, SECS, 4), lab.spawn(lab.c, F, "10.96.0.41", 3868, 200, SECS, 5)]
time.sleep(5); w = lab.tool(lab.c, "short", "10.96.0.10", 80, 5, 50, 2000).out(); a = lab.ps()
out = [p.out() for p in ps]; time.sleep(8); m = {k: v for k, v in lab.metrics('SCTP').items() if v}; c0 = lab.ps()["cpu_s"]; time.sleep(2); e = lab.ps()
report("sctp_fuzz", lab.sl.p.poll() is None and w["ok"] == 250 and e["cpu_s"] - c0 < .3, sent=out, web=w, before=b, during=a, end=e, idle_cpu_2s=e["cpu_s"] - c0, metrics=m, log=[l[25:260] for l in lab.log().splitlines() if "panic" in l or "ERROR" in l or "SCTP" in l][:4])
