"""A start with one rejected file among good ones serves the good ones, and says which is rejected in the log, by status, in the events, on the page and in the detail of /healthz."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(); p = sluice(expect=6)
want(p.poll() is None, f"it runs (exit status {p.poll()})")
for n in (10, 11, 12): r = ask(f"10.96.0.{n}"); want(r in pods, f"the good Service at 10.96.0.{n} is served: {r}")
want("broken.yaml" in log(), "the log names the file")
for what, text in (("status", lambda: ctl("status").stdout), ("status -o json", lambda: ctl("status", "-o", "json").stdout), ("events", lambda: ctl("events").stdout), ("page", lambda: page()[1]), ("/healthz", lambda: get("n", "127.0.0.1", 10256, "/healthz")[1])):
    want("broken.yaml" in text(), f"{what} names the file")
done()
