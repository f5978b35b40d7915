"""The program of the app: it listens on the Unix socket of its only argument, and greets the user."""

import getpass
import sys
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        self.wfile.write(f"Hello {getpass.getuser()}\n".encode())

    def address_string(self) -> str:
        return "server"


ThreadingUnixStreamServer(sys.argv[1], Hello).serve_forever()
