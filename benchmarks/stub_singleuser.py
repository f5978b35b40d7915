"""A stub of jupyterhub-singleuser for benchmarks of the hub alone: it answers every request, and does nothing else.

It imports few modules of the standard library, to start fast. For batchspawner, which waits for a port, it reports the
port in place of batchspawner's own wrapper, which would take a second of processor time for each session.
"""

import json
import os
import socket
import sys
from urllib.parse import urlsplit

VERSION = sys.argv[1]
BODY = json.dumps({"version": "0", "stand-in": True})
ANSWER = (
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
    f"X-JupyterHub-Version: {VERSION}\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
).encode()


def report_to_batchspawner(port: int) -> None:
    """Send the port as batchspawner-singleuser does."""
    api = urlsplit(os.environ["JUPYTERHUB_API_URL"])
    body = json.dumps({"port": port})
    head = f"POST {api.path}/batchspawner HTTP/1.1\r\nHost: {api.netloc}\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: token {os.environ['JUPYTERHUB_API_TOKEN']}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((api.hostname, api.port), timeout=60) as line:
        line.sendall((head + body).encode())
        while line.recv(4096):
            pass


listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(("127.0.0.1", urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port or 0))
listening.listen(16)
if "--batchspawner" in sys.argv:
    report_to_batchspawner(listening.getsockname()[1])
while True:
    line, _ = listening.accept()
    with line:
        line.settimeout(5)
        try:
            if line.recv(65536):
                line.sendall(ANSWER)
        except OSError:
            pass
