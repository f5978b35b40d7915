"""An app that returns everything it receives: path, headers, environment. It tries to set cookies, also the hub's."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import sys
from typing import Any


class EchoHandler(http.server.BaseHTTPRequestHandler):
    """Answers every request with its content."""

    def do_GET(self) -> None:
        """Tell."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        told: dict[str, Any] = {"path": self.path, "method": self.command, "body": body, "environ": dict(os.environ)}
        told["headers"] = {name.title(): value for name, value in self.headers.items()}
        text = json.dumps(told).encode()
        self.send_response(200)
        for cookie in ("own=1; Path=/", "foreign=1", "jupyterhub-user-alice=forged; Path=/"):
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET

    def address_string(self) -> str:
        """Return the client's address; a unix socket has none."""
        return "the proxy"


class UnixSocketServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves on a unix socket."""

    daemon_threads = True


if __name__ == "__main__":
    UnixSocketServer(sys.argv[1], EchoHandler).serve_forever()
