"""A person at the hub's address, by their own machine: visitor.py URL AUTHORITY ACTION …; prints one JSON value.

- ``token USER``: log in by the page with $PASSWORD, ask for a token, and print it; or the page's refusal;
- ``start USER OPTIONS``: start a server with these options (JSON), wait for it, and print its model;
- ``cell USER CODE``: run code in a new kernel and print what it prints; ``stop USER``: stop the server, and wait;
- ``lock USER``, ``unlock USER``: keep that user out, as an administrator, and let them in again.

It runs in a process of its own, because only a process can be in another network than this one's. A variable of the
environment that has the hub's name has its address, as a name service would.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import time
import uuid
from typing import Any

import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

START, STOP, CELL = 150.0, 60.0, 60.0


class Visitor:
    """A browser's cookies, or a token."""

    def __init__(self, url: str, authority: str) -> None:
        self.url, self.authority = url, authority
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = authority

    def token(self, user: str) -> dict[str, Any]:
        """Log in by the form and return ``{"token": …}`` or ``{"status": …, "refused": words}``."""
        page = self.session.get(f"{self.url}/hub/login", timeout=30)
        (field,) = set(re.findall(r'name="_xsrf" value="([^"]+)"', page.text))
        fields = {"username": user, "password": os.environ["PASSWORD"], "_xsrf": field}
        answer = self.session.post(f"{self.url}/hub/login", data=fields, timeout=60, allow_redirects=False)
        if answer.status_code != 302:
            return {"status": answer.status_code, "refused": re.sub(r"<[^>]+>|\s+", " ", answer.text)}
        home = self.session.get(f"{self.url}/hub/home", timeout=30)
        headers = {"X-XSRFToken": self._xsrf(), "Referer": home.url}
        made = self.session.post(f"{self.url}/hub/api/users/{user}/tokens", json={}, headers=headers, timeout=30)
        made.raise_for_status()
        return {"token": made.json()["token"]}

    def _xsrf(self) -> str:
        return next(cookie.value or "" for cookie in self.session.cookies if cookie.name == "_xsrf")

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request with the token and return the answer's document."""
        headers = {"Authorization": f"token {os.environ['TOKEN']}"}
        answer = self.session.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=90)
        if answer.status_code >= 400:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text[:1000]}")
        return answer.json() if answer.text else None

    def start(self, user: str, options: Any) -> Any:
        """Start a server and return its model once it is ready."""
        self.api("POST", f"/hub/api/users/{user}/server", {"user_options": options})
        return self._wait(user, START, lambda server: server is not None and server["ready"])

    def stop(self, user: str) -> Any:
        """Stop the server and wait for its end."""
        self.api("DELETE", f"/hub/api/users/{user}/server")
        return self._wait(user, STOP, lambda server: server is None)

    def _wait(self, user: str, limit: float, done: Any) -> Any:
        deadline, seen = time.monotonic() + limit, None
        while time.monotonic() < deadline:
            seen = self.api("GET", f"/hub/api/users/{user}")["servers"].get("")
            if done(seen):
                return seen
            time.sleep(0.5)
        raise SystemExit(f"not within {limit:.0f} s: {seen}")

    def administer(self, user: str, action: str) -> Any:
        """Lock or unlock a user, which is an act for the audit log."""
        return self.api("POST", f"/hub/api/carme/console/users/{user}/{action}", {"reason": "a test"})

    async def cell(self, user: str, code: str) -> str:
        """Run code in a new kernel and return what it printed, or its traceback."""
        kernel = self.api("POST", f"/user/{user}/api/kernels", {"name": "python3"})["id"]
        address = f"{self.url.replace('https', 'wss', 1)}/user/{user}/api/kernels/{kernel}/channels"
        headers = {"Authorization": f"token {os.environ['TOKEN']}"}
        channels = await websocket_connect(HTTPRequest(address, headers=headers, ca_certs=self.authority))
        id = uuid.uuid4().hex
        header = {"msg_id": id, "msg_type": "execute_request", "username": user, "session": id, "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await channels.write_message(json.dumps(message))
        printed = ""
        while raw := await channels.read_message():
            answer = json.loads(raw)
            if answer.get("parent_header", {}).get("msg_id") != id:
                continue
            if answer["msg_type"] == "stream":
                printed += answer["content"]["text"]
            elif answer["msg_type"] == "error":
                printed += "\n".join(answer["content"]["traceback"])
            elif answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
                channels.close()
                return printed
        raise SystemExit("the kernel's connection closed")


def know_names() -> None:
    """Resolve names by this process's environment."""
    resolve = socket.getaddrinfo

    def known(host: Any, *more: Any, **options: Any) -> Any:
        return resolve(os.environ.get(str(host), host), *more, **options)

    socket.getaddrinfo = known


def main(url: str, authority: str, action: str, user: str, *words: str) -> None:
    """Do one thing and print the answer."""
    know_names()
    visitor = Visitor(url, authority)
    if action == "token":
        print(json.dumps(visitor.token(user)))
    elif action == "start":
        print(json.dumps(visitor.start(user, json.loads(words[0]))))
    elif action == "cell":
        print(json.dumps(asyncio.run(asyncio.wait_for(visitor.cell(user, words[0]), CELL))))
    elif action in ("lock", "unlock"):
        print(json.dumps(visitor.administer(user, action)))
    else:
        print(json.dumps(visitor.stop(user)))


if __name__ == "__main__":
    main(*sys.argv[1:])
