"""A target written as NAMESPACE/NAME:PORT, which a user reads in the rows of other commands, is understood by explain, or refused with a word on what to write."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(); sluice(); want(ask("10.96.0.10") in pods, "it serves")
print(ctl("services").stdout)
for t in ("default/web", "default/web:80", "default/web:p"):
    for cmd in (("explain", t), ("explain", "10.77.0.2", t), ("services", t), ("endpoints", t), ("connections", t), ("events", t)):
        r = ctl(*cmd); print(f"{' '.join(cmd)}: rc {r.returncode}, {(r.stdout + r.stderr).strip()[:160]!r}")
        if cmd[0] == "explain": want(r.returncode == 0 and "10.77." in r.stdout, f"{' '.join(cmd)} is answered")
done()
