"""An upgrade (hand-over) while one file of the folder is rejected: it goes through and serves all good ones; a Service whose file has become invalid is served on as it was last, or the upgrade is refused with the file's name, and nothing is lost. Open connections stay."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(2); H = TMP / "handover.sock"; p = sluice("--handover-socket", str(H)); want((ask("10.96.0.10"), ask("10.96.0.11")) == ("p1", "p2"), "both are served"); text = (MAN / "one.yaml").read_text()
s = sock("c"); s.settimeout(3); s.connect(("10.96.0.10", 80)); f = s.makefile("rb"); f.readline()
def upgrade(): r = sh(SLUICE, "upgrade", "--handover-socket", H, ns="n", check=False, timeout=60); print("upgrade:", r.returncode, (r.stdout + r.stderr).strip()[-300:]); return r
put("broken.yaml", text.replace("port: 80,", "port: 80800,").replace("name: one", "name: broken").replace("10.96.0.10", "10.96.0.13")); time.sleep(1)
r = upgrade(); want(r.returncode == 0, "with a new file that is rejected: the upgrade goes through"); want("broken.yaml" in r.stdout + r.stderr + log(), "the file is named")
want((ask("10.96.0.10"), ask("10.96.0.11")) == ("p1", "p2"), "both are served"); (MAN / "broken.yaml").unlink(); time.sleep(1)
put("one.yaml", text.replace("port: 80,", "port: 80800,")); time.sleep(1); want(ask("10.96.0.10") == "p1", "a file that has become invalid: its last state is served")
r = upgrade(); a = (ask("10.96.0.10", timeout=2), ask("10.96.0.11", timeout=2)); want(a == ("p1", "p2"), f"after the attempt to upgrade ({r.returncode}): {a}"); want(r.returncode == 0 or "one.yaml" in r.stdout + r.stderr, "a refusal names the file")
s.sendall(b"still\n"); want(f.readline() == b"still\n", "the open connection goes on"); put("one.yaml", text); time.sleep(1); r = upgrade(); want(r.returncode == 0 and ask("10.96.0.10") == "p1", "with all files right again")
done()
