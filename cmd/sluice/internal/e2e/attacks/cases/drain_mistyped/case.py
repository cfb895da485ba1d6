"""sluice drain of an endpoint or node that there is none of says so by a word in its answer, and by its exit status unless it is asked to go on."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(); sluice(); want(ask("10.96.0.10") in pods, "it serves")
for t in (("10.77.2.2:8081",), ("10.77.2.20",), ("node/node-zz",), ("10.77.2.2:8080", "--service", "default/wbe")):
    r = ctl("drain", *t); text = r.stdout + r.stderr; print(f"drain {' '.join(t)}: rc {r.returncode}, {text.strip()!r}")
    want(re.search(r"no (such|endpoint|node|Service)|none|not (found|known)|unknown|0 endpoints|matches", text, re.I) is not None, f"drain {' '.join(t)}: a word says that there is none")
    want(r.returncode != 0, f"drain {' '.join(t)}: and so does the exit status, for scripts ({r.returncode})")
r = ctl("drain", "10.77.2.2:8080"); time.sleep(0.5); want(r.returncode == 0 and "p2" not in turns(30, "10.96.0.10"), "drain of an endpoint that there is works")
done()
