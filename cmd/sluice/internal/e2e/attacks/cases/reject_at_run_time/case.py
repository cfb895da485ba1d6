"""A file that is rejected while Sluice runs is seen by status, in the events, on the page and in the detail of /healthz, not in the log alone."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(); sluice(); want(ask("10.96.0.10") in pods, "it serves")
put("broken.yaml", (MAN / "web.yaml").read_text().replace("port: 80,", "port: 80800,").replace("name: web", "name: broken")); time.sleep(1.5)
want(ask("10.96.0.10") in pods, "it still serves"); want("broken.yaml" in log(), "the log names the file")
for what, text in (("status", lambda: ctl("status").stdout), ("status -o json", lambda: ctl("status", "-o", "json").stdout), ("events", lambda: ctl("events").stdout), ("page", lambda: page()[1]), ("/healthz", lambda: get("n", "127.0.0.1", 10256, "/healthz")[1]), ("metrics", lambda: get("n", "127.0.0.1", 10249, "/metrics")[1])):
    t = text(); want("broken.yaml" in t or what == "metrics" and re.search(r"^sluice_manifest\S*(reject|invalid|problem|error)\S* [1-9]", t, re.M) is not None, f"{what} shows it")
done()
