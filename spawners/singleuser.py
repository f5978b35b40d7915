#!/usr/bin/env python3
# ruff: noqa: UP006, UP035, UP045, PTH103, PTH108, PTH118, PTH123, S606
"""carme-singleuser: inside the container it takes a free port, reports it to the hub once, and becomes the server.

It reads its part of the data document from ``singleuser.json`` in the session folder (first argument, or
``CARME_SESSION_FOLDER``) and deletes the file. Standard library only, Python 3.6 or later, so any image will do.
Exit codes: 70 bad data, 73 no free port, 74 the hub did not answer, 75 the hub refused, 77 working folder missing,
78 working folder not usable, 79 no space left, 81 the server's program cannot be run, 82 it is for another processor.
"""

import errno
import http.client
import json
import os
import random
import signal
import socket
import ssl
import sys
import time
from typing import Any, Dict, List, NoReturn, Optional, Tuple
from urllib.parse import urlsplit

BAD_DATA, NO_PORT, NO_ANSWER, REFUSED = 70, 73, 74, 75
NO_FOLDER, BAD_FOLDER, NO_SPACE, NO_PROGRAM, OTHER_PROCESSOR = 77, 78, 79, 81, 82
PATIENCE = 600.0  # seconds for which the hub may be away
ATTEMPT, PAUSE, LONGEST_PAUSE = 15.0, 0.2, 10.0
PORTS_TRIED = 200


class Failed(Exception):
    """The server cannot be started; the code says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def say(message: str) -> None:
    """Write one line to the job's log."""
    sys.stdout.write(f"[carme-singleuser] {message}\n")
    sys.stdout.flush()


def read_and_delete(path: str) -> Dict[str, Any]:
    """Return the document and remove its file: it is read once."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
            data = dict(json.load(file))
        os.unlink(path)
        data["ports"] = [int(number) for number in data["ports"]]
        wanted = {"callback": str, "nonce": str, "bind": str, "argv": list, "environ": dict}
        if len(data["ports"]) == 2 and data["argv"] and all(isinstance(data[k], t) for k, t in wanted.items()):
            return data
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failed(BAD_DATA, f"singleuser.json cannot be used ({type(error).__name__})") from error
    raise Failed(BAD_DATA, "singleuser.json has not the expected shape")


def enter(folder: str, make: bool) -> None:
    """Go to the working folder, which may be made where it is missing."""
    try:
        if make:
            os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
    except FileNotFoundError as error:
        raise Failed(NO_FOLDER, f"the working folder {folder} does not exist") from error
    except OSError as error:
        code = NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else BAD_FOLDER
        raise Failed(code, f"the working folder {folder} cannot be used: {error.strerror}") from error


def hold_port(address: str, lowest: int, highest: int) -> socket.socket:
    """Bind a free port of the range and keep it; the server of this session can still bind it too.

    Bound first without SO_REUSEADDR, which fails when anybody holds the port, and given SO_REUSEADDR after: Linux
    lets a second socket with that option bind as long as nobody listens. So two sessions never share a port, the
    kernel gives it to nobody, and no time passes between asking and having.
    """
    tried = list(range(lowest, highest + 1))
    family, _, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    for port in random.sample(tried, min(PORTS_TRIED, len(tried))):
        held = socket.socket(family, socket.SOCK_STREAM)
        try:
            held.bind((where[0], port))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.set_inheritable(True)
        return held
    raise Failed(NO_PORT, f"no free port between {lowest} and {highest} on this node")


def tls(environ: Dict[str, str]) -> ssl.SSLContext:
    """Return a context that knows the hub by its authority only, and shows our own certificate."""
    authority = environ.get("JUPYTERHUB_SSL_CLIENT_CA")
    context = ssl.create_default_context(cafile=authority or None)
    if environ.get("JUPYTERHUB_SSL_KEYFILE"):
        context.load_cert_chain(environ["JUPYTERHUB_SSL_CERTFILE"], environ["JUPYTERHUB_SSL_KEYFILE"])
    return context


def post_once(url: str, nonce: str, port: int, context: Optional[ssl.SSLContext]) -> Tuple[int, str]:
    """Send the port and return the hub's status and words. No proxy is used and no redirect followed."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if context is not None:
        line = http.client.HTTPSConnection(host, parts.port, timeout=ATTEMPT, context=context)  # type: Any
    else:
        line = http.client.HTTPConnection(host, parts.port, timeout=ATTEMPT)
    try:
        headers = {"Authorization": "carme-nonce " + nonce, "Content-Type": "application/json"}
        line.request("POST", parts.path or "/", json.dumps({"port": port}), headers)
        answer = line.getresponse()
        return answer.status, answer.read(4096).decode("utf-8", "replace")
    finally:
        line.close()


def words(body: str) -> str:
    """Return the sentence in the hub's answer, which is JSON or plain text."""
    try:
        data = json.loads(body)
        return str(data.get("message") or data.get("error") or "")[:500]
    except (ValueError, AttributeError):
        return " ".join(body.split())[:200]


def report(data: Dict[str, Any], port: int) -> None:
    """Tell the hub the port, once; wait for a hub that is away, believe one that says no."""
    context = None
    if data["callback"].startswith("https:"):
        try:
            context = tls(data["environ"])
        except (OSError, KeyError) as error:
            raise Failed(BAD_DATA, f"the session's certificates cannot be used: {error}") from error
    end, pause, said = time.monotonic() + PATIENCE, PAUSE, ""
    while True:
        try:
            status, body = post_once(data["callback"], data["nonce"], port, context)
            problem = f"it answers {status}"
            if 200 <= status < 300:
                return
            if status < 500 and status not in (408, 429):
                raise Failed(REFUSED, f"the hub refused this session ({status}): {words(body)}")
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
        if time.monotonic() + pause > end:
            raise Failed(NO_ANSWER, f"the hub did not answer for {PATIENCE / 60:.0f} minutes: {problem}")
        if problem != said:
            say(f"waiting for the hub: {problem}")
            said = problem
        time.sleep(pause * (0.5 + random.random()))
        pause = min(LONGEST_PAUSE, pause * 2)


def server_url(data: Dict[str, Any], port: int) -> str:
    """Return what jupyterhub-singleuser reads its address, port and base path from."""
    environ = data["environ"]
    base = environ.get("JUPYTERHUB_SERVICE_PREFIX") or urlsplit(environ.get("JUPYTERHUB_SERVICE_URL", "")).path or "/"
    host = "[{}]".format(data["bind"]) if ":" in data["bind"] else data["bind"]
    scheme = "https" if environ.get("JUPYTERHUB_SSL_KEYFILE") else "http"
    return f"{scheme}://{host}:{port}{base}"


def main(argv: List[str]) -> int:
    """Become the session's server; returns only on failure."""
    # The supervisor of a bubblewrap container ignores these, and what is ignored stays so in everything started.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    folder = argv[1] if len(argv) > 1 else os.environ.get("CARME_SESSION_FOLDER", "")
    try:
        data = read_and_delete(os.path.join(folder, "singleuser.json"))
        if data.get("folder"):
            enter(data["folder"], bool(data.get("make_folder")))
        with hold_port(data["bind"], data["ports"][0], data["ports"][1]) as held:
            port = held.getsockname()[1]
            report(data, port)
            become_server(data, port)
    except Failed as error:
        say(str(error))
        return error.code


def become_server(data: Dict[str, Any], port: int) -> NoReturn:
    """Replace this program by the server."""
    environ = dict(os.environ)
    environ.update(data["environ"])
    environ["JUPYTERHUB_SERVICE_URL"] = server_url(data, port)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and exec would hand that on
    say(f"starting {data['argv'][0]} on port {port}")
    try:
        os.execvpe(data["argv"][0], data["argv"], environ)
    except OSError as error:
        code = OTHER_PROCESSOR if error.errno == errno.ENOEXEC else NO_PROGRAM
        raise Failed(code, f"{data['argv'][0]} cannot be started: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv))
