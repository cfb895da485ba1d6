"""A manifest that is written in place and not at once, by a shell's redirection (empty until the program has its output) or a slow copy (half of it, a pause, the rest), does not take away what it will have again at its end: no connection is refused meanwhile."""
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bed import *

bed(1); f = MAN / "many.yaml"; text = f.read_text(); sluice(); want(ask("10.97.0.30") == "p1", "the last Service is served"); cut = text.index("---\napiVersion: v1\nkind: Service", len(text) // 2)
def during(what, write):
    bad = collections.Counter(); stop = []; n = log().count("service removed")
    def client():
        while not stop: bad[ask("10.97.0.30", timeout=1)] += 1; time.sleep(0.01)
    t = threading.Thread(target=client); t.start()
    for k in range(3):
        with open(f, "w") as o: write(o)
        time.sleep(0.7)
    stop.append(1); t.join(); want(set(bad) == {"p1"}, f"{what}: {dict(bad)}; {log().count('service removed') - n} lines of Services removed"); c = ask("10.97.0.30"); want(c == "p1", f"{what}: at the end: {c}")
def redirection(o): o.flush(); time.sleep(1); o.write(text)
def slow(o): o.write(text[:cut]); o.flush(); time.sleep(0.5); o.write(text[cut:])
def chunks(o):
    for k in range(0, len(text), 2048): o.write(text[k:k + 2048]); o.flush(); time.sleep(0.03)
s = sock("c"); s.settimeout(2); s.connect(("10.97.0.30", 80)); s.recv(9)
during("empty for a second, as by a shell's redirection", redirection); during("half of it, half a second, the rest", slow); during("2 KiB each 30 ms", chunks)
try: s.sendall(b"x"); r = s.recv(9)
except OSError as e: r = str(e)
want(r == b"x", f"the open connection, of a Service with drain reset: {r}")
done()
