"""A folder can be checked before a start: something says yes to a good one with status 0, names file and line of a bad one with another status, and starts nothing."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(1); bad = TMP / "bad"; shutil.copytree(MAN, bad); (bad / "broken.yaml").write_text((MAN / "web.yaml").read_text().replace("port: 80,", "port: 80800,").replace("name: web", "name: broken"))
found = []
for a in (["check", "--manifests"], ["--check", "--manifests"], ["validate", "--manifests"], ["--validate", "--manifests"], ["--dry-run", "--manifests"], ["check"], ["validate"], ["lint"]):
    out = []
    for d in (MAN, bad):
        try: r = sh(SLUICE, *a, d, ns="n", check=False, timeout=6); out.append((r.returncode, r.stdout + r.stderr))
        except subprocess.TimeoutExpired: out.append((None, "it went on"))
    print(" ".join(a), [(c, t.strip()[:110]) for c, t in out])
    if out[0][0] == 0 and out[1][0] not in (0, None) and "broken.yaml" in out[1][1]: found.append(" ".join(a))
h = sh(SLUICE, "--help", ns="n", check=False).stdout; print([l.strip() for l in h.splitlines() if re.search(r"\b(check|validate|dry.run)\b.*(manifest|configuration|start)", l, re.I)][:5])
r = [sh(SLUICE, "explain", "--manifests", d, "default/web", ns="n", check=False) for d in (MAN, bad)]; print("explain --manifests instead:", [(x.returncode, (x.stdout + x.stderr).strip()[:160]) for x in r])
want(bool(found), f"there is a check: {found}")
done()
