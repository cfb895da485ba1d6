"""The endpoint and the clients of test-deb.

  load.py serve               answers at port 8080
  load.py once ADDRESS        asks once, by port 80
  load.py load ADDRESS FILE   asks 200 times a second and downloads, until FILE is there
"""
import hashlib
import os
import socket
import socketserver
import sys
import threading
import time

PIECE, PIECES, PACE = 64 << 10, 400, 0.01  # of a download: bytes, count, seconds between
TIMEOUT = 30


class Endpoint(socketserver.BaseRequestHandler):
    def handle(self):
        if self.request.recv(16) == b"long":
            for i in range(PIECES):
                self.request.sendall(piece(i))
                time.sleep(PACE)
        else:
            self.request.sendall(b"ok")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024


def piece(i):
    return hashlib.sha256(str(i).encode()).digest() * (PIECE // 32)


def ask(address, question, got=None):
    """Returns how many bytes came, up to the end of the connection."""
    count = 0
    with socket.create_connection((address, 80), timeout=TIMEOUT) as s:
        s.sendall(question)
        while data := s.recv(PIECE):
            count += len(data)
            if got:
                got.update(data)
    return count


def load(address, stop):
    asked, errors, downloads, lock = 0, [], 0, threading.Lock()

    def client(question, want, pause):
        nonlocal asked, downloads
        while not os.path.exists(stop):
            got, due = hashlib.sha256(), time.monotonic() + pause
            try:
                ask(address, question, got)
                error = None if got.digest() == want else "wrong bytes"
            except OSError as e:
                error = repr(e)
            with lock:
                asked += question == b"ask"
                downloads += question == b"long"
                if error:
                    errors.append(question.decode() + ": " + error)
            time.sleep(max(0, due - time.monotonic()))

    whole = hashlib.sha256(b"".join(piece(i) for i in range(PIECES))).digest()
    clients = [threading.Thread(target=client, args=(b"long", whole, 0)) for _ in range(3)]
    clients += [threading.Thread(target=client, args=(b"ask", hashlib.sha256(b"ok").digest(), 0.1)) for _ in range(20)]
    began = time.monotonic()
    for c in clients:
        c.start()
    print("running", flush=True)
    for c in clients:
        c.join()
    took = time.monotonic() - began
    print(*errors[:10], sep="\n")
    print(f"{asked} connections in {took:.1f} s and {downloads} downloads of {PIECE * PIECES >> 20} MB: {len(errors)} lost")
    sys.exit(bool(errors))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        Server(("0.0.0.0", 8080), Endpoint).serve_forever()
    elif sys.argv[1] == "once":
        sys.exit(ask(sys.argv[2], b"ask") != 2)
    else:
        load(sys.argv[2], sys.argv[3])
