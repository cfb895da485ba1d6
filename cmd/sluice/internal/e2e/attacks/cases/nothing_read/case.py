"""A folder without a manifest, and one whose files end so that they are not read, are reported by a warning: nothing is served."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(1); empty = TMP / "empty"; empty.mkdir(); other = TMP / "other"; other.mkdir(); (other / "web.yml.txt").write_text((MAN / "web.yaml").read_text()); (other / "web.yaml.bak").write_text("x")
for what, d in (("an empty folder", empty), ("a folder with web.yml.txt", other)):
    LOG.unlink(missing_ok=True); p = sluice(folder=d, expect=8); time.sleep(1); t = log(); print(t[-700:])
    st = ctl("status").stdout; print(st[:600])
    want(re.search(r"WARN|ERROR", "\n".join(l for l in t.splitlines() if "manifest" in l or "Services" in l or "file" in l and "oom" not in l)) is not None, f"{what}: the log warns")
    if d == other: want("web.yml.txt" in t, "the log names the file that was not read")
    want(bool(re.search(r"no (Service|manifest)|nothing|0 files", st, re.I)), f"{what}: status says so")
    p.terminate(); p.wait(20)
done()
