#!/usr/bin/env python3
# ruff: noqa: UP006, UP035, PTH103, PTH108, PTH113, PTH118, PTH119, PTH120, PTH123, S606
"""carme-singleuser: inside the container it reserves a free port, reports it to the hub, and becomes the server.

It reads ``singleuser.json`` in the session folder (first argument, or ``CARME_SESSION_FOLDER``) and deletes the file.
Standard library only, Python 3.6 or later, so it runs in any image.

Where the server is a script of the same interpreter, it runs in this process, and shared modules are imported once; any
other program replaces this one (execve(2)). A node may start hundreds of servers at once, so this program imports
nothing expensive: http.client alone would take half as long as everything else.
Exit codes: 70 bad data, 73 no free port, 74 the hub did not answer, 75 the hub refused, 77 working folder missing,
78 working folder not usable, 79 no space left, 81 the server's program cannot be run, 82 it is for another processor.
"""

import errno
import gc
import json
import os
import signal
import socket
import sys
import time
from importlib import import_module
from types import ModuleType
from urllib.parse import urlsplit

TYPE_CHECKING = False  # as typing.TYPE_CHECKING: importing typing takes 4 ms of each start
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

BAD_DATA, NO_PORT, NO_ANSWER, REFUSED = 70, 73, 74, 75
NO_FOLDER, BAD_FOLDER, NO_SPACE, NO_PROGRAM, OTHER_PROCESSOR = 77, 78, 79, 81, 82
HUB_TIMEOUT = 600.0  # seconds for which the hub may be away
ATTEMPT, PAUSE, LONGEST_PAUSE = 15.0, 0.2, 10.0
PORTS_TRIED, LONGEST_ANSWER = 200, 8192
#: Variables that a program reads only at its start, so a running interpreter would not see a change.
READ_AT_START = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "TZ")
#: Modules of the hub that jupyterhub.singleuser imports and never uses (database and pages), with the classes that it
#: imports from them by name. They were a third of the processor time of a start (docs/explanation/speed.md).
HUB_MODULES = {
    "sqlalchemy": (),
    "sqlalchemy.exc": ("SQLAlchemyError",),
    "jupyterhub.orm": (),
    "jupyterhub.roles": (),
    "jupyterhub.handlers": (),
    "jupyterhub.handlers.pages": ("HealthCheckHandler",),
}  # type: Dict[str, Tuple[str, ...]]


class Failed(Exception):
    """The server cannot be started; the exit code says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def say(message: str) -> None:
    """Write one line to the job's log."""
    sys.stdout.write(f"[carme-singleuser] {message}\n")
    sys.stdout.flush()


def read_and_delete(path: str) -> "Dict[str, Any]":
    """Return the document and remove its file, so that it is read once."""
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
    raise Failed(BAD_DATA, "singleuser.json does not have the expected structure")


def change_folder(folder: str, make: bool) -> None:
    """Change to the working folder; create it where that is allowed."""
    try:
        if make:
            os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
    except FileNotFoundError as error:
        raise Failed(NO_FOLDER, f"the working folder {folder} does not exist") from error
    except OSError as error:
        code = NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else BAD_FOLDER
        raise Failed(code, f"the working folder {folder} cannot be used: {error.strerror}") from error


def reserve_port(address: str, lowest: int, highest: int) -> socket.socket:
    """Bind a free port of the range and keep it bound; the server of this session can still bind it too.

    The first bind is without SO_REUSEADDR, so it fails where anybody holds the port; the option is set afterwards:
    Linux lets a second socket with that option bind as long as nobody listens. So two sessions never share a port, the
    kernel gives the port to nobody else, and no time passes between finding a port and holding it.
    """
    family, _, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    for port in shuffled_ports(lowest, highest):
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            reserved.bind((where[0], port))
        except OSError:
            reserved.close()
            continue
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.set_inheritable(True)
        return reserved
    raise Failed(NO_PORT, f"no free port between {lowest} and {highest} on this node")


def shuffled_ports(lowest: int, highest: int) -> "List[int]":
    """Return ports of the range in an unpredictable order."""
    ports = list(range(lowest, highest + 1))
    for place in range(min(PORTS_TRIED, len(ports))):
        other = place + int.from_bytes(os.urandom(4), "big") % (len(ports) - place)
        ports[place], ports[other] = ports[other], ports[place]
    return ports[:PORTS_TRIED]


def tls_context(environ: "Dict[str, str]") -> "Any":
    """Return a TLS context that trusts only the hub's authority and shows the session's certificate."""
    import ssl  # imported here: a site without internal TLS does not need it

    authority = environ.get("JUPYTERHUB_SSL_CLIENT_CA")
    context = ssl.create_default_context(cafile=authority or None)
    if environ.get("JUPYTERHUB_SSL_KEYFILE"):
        context.load_cert_chain(environ["JUPYTERHUB_SSL_CERTFILE"], environ["JUPYTERHUB_SSL_KEYFILE"])
    return context


def post_once(url: str, nonce: str, port: int, context: "Any") -> "Tuple[int, str]":
    """Send the port and return the status and text of the hub's answer; use no proxy and follow no redirect.

    The request is HTTP/1.0, whose answer ends with the connection (RFC 1945).
    """
    parts = urlsplit(url)
    body = json.dumps({"port": port})
    head = [f"POST {parts.path or '/'} HTTP/1.0", f"Host: {parts.netloc.rpartition('@')[2]}"]
    head += [f"Authorization: carme-nonce {nonce}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    where = (parts.hostname or "", parts.port or (443 if context else 80))
    answer, end = b"", time.monotonic() + ATTEMPT
    connection = socket.create_connection(where, ATTEMPT)
    try:
        connection = context.wrap_socket(connection, server_hostname=where[0]) if context else connection
        connection.sendall("\r\n".join([*head, "", body]).encode())
        piece = b"-"
        while piece and len(answer) < LONGEST_ANSWER:
            connection.settimeout(max(0.1, end - time.monotonic()))
            piece = connection.recv(4096)
            answer += piece
    finally:
        connection.close()
    first, _, rest = answer.partition(b"\r\n")
    version, _, status = first.partition(b" ")
    if not version.startswith(b"HTTP/") or not status[:3].isdigit() or len(status[:3]) < 3:
        raise OSError("it answers with something that is not HTTP")
    return int(status[:3]), rest.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")


def error_text(body: str) -> str:
    """Return the message in the hub's answer, which is JSON or plain text."""
    try:
        data = json.loads(body)
        return str(data.get("message") or data.get("error") or "")[:500]
    except (ValueError, AttributeError):
        return " ".join(body.split())[:200]


def report(data: "Dict[str, Any]", port: int) -> None:
    """Report the port to the hub; retry while the hub does not answer, and stop where it refuses."""
    context = None
    if data["callback"].startswith("https:"):
        try:
            context = tls_context(data["environ"])
        except (OSError, KeyError) as error:
            raise Failed(BAD_DATA, f"the session's certificates cannot be used: {error}") from error
    end, pause, reported = time.monotonic() + HUB_TIMEOUT, PAUSE, ""
    while True:
        try:
            status, body = post_once(data["callback"], data["nonce"], port, context)
            problem = f"it answers {status}"
            if 200 <= status < 300:
                return
            if status < 500 and status not in (408, 429):
                raise Failed(REFUSED, f"the hub refused this session ({status}): {error_text(body)}")
        except OSError as error:
            problem = str(error) or type(error).__name__
        if time.monotonic() + pause > end:
            raise Failed(NO_ANSWER, f"the hub did not answer for {HUB_TIMEOUT / 60:.0f} minutes: {problem}")
        if problem != reported:
            say(f"waiting for the hub: {problem}")
            reported = problem
        time.sleep(pause * (0.5 + ord(os.urandom(1)) / 256))
        pause = min(LONGEST_PAUSE, pause * 2)


def server_url(data: "Dict[str, Any]", port: int) -> str:
    """Return the URL from which jupyterhub-singleuser takes its address, port and base path."""
    environ = data["environ"]
    base = environ.get("JUPYTERHUB_SERVICE_PREFIX") or urlsplit(environ.get("JUPYTERHUB_SERVICE_URL", "")).path or "/"
    host = "[{}]".format(data["bind"]) if ":" in data["bind"] else data["bind"]
    scheme = "https" if environ.get("JUPYTERHUB_SSL_KEYFILE") else "http"
    return f"{scheme}://{host}:{port}{base}"


def main(argv: "List[str]") -> int:
    """Become the session's server; return only where that failed or the server has ended."""
    # The supervisor of a bubblewrap container ignores these signals, and child processes inherit that.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    folder = argv[1] if len(argv) > 1 else os.environ.get("CARME_SESSION_FOLDER", "")
    try:
        data = read_and_delete(os.path.join(folder, "singleuser.json"))
        if data.get("folder"):
            change_folder(data["folder"], bool(data.get("make_folder")))
        with reserve_port(data["bind"], data["ports"][0], data["ports"][1]) as reserved:
            port = reserved.getsockname()[1]
            report(data, port)
            become_server(data, port)
        return 0
    except Failed as error:
        say(str(error))
        return error.code


def own_script(name: str, environ: "Dict[str, str]") -> str:
    """Return the path of the server's script where this interpreter would run it, or ""."""
    for variable in set(environ) | set(os.environ):
        if variable.startswith(READ_AT_START) and environ.get(variable) != os.environ.get(variable):
            return ""
    path = which(name, environ.get("PATH", os.defpath))
    if not path or not sys.executable:
        return ""
    with open(path, "rb") as file:
        head = file.readline(512)
    interpreter = head[2:].decode(errors="replace").split() if head[:2] == b"#!" else []
    if interpreter[:1] == ["/usr/bin/env"] and len(interpreter) == 2:
        interpreter = [which(interpreter[1], environ.get("PATH", os.defpath))]
    # The folder must be the same too: Python finds its packages by it, not by the target of a link.
    same = len(interpreter) == 1 and os.path.dirname(interpreter[0]) == os.path.dirname(sys.executable)
    return path if same and os.path.realpath(interpreter[0]) == os.path.realpath(sys.executable) else ""


def which(name: str, folders: str) -> str:
    """Return the path of a program as execvp(3) finds it, or ""."""
    paths = [name] if "/" in name else [os.path.join(folder, name) for folder in folders.split(":")]
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


class LazyModule(ModuleType):
    """Stands in for a module; the first access to its contents imports the real one."""

    def __getattr__(self, name: str) -> "Any":
        if sys.modules.get(self.__name__) is not self:
            return getattr(import_module(self.__name__), name)
        if name in HUB_MODULES[self.__name__]:
            return type(name, (Exception,), {"__module__": self.__name__})  # it is never raised
        raise AttributeError(f"{self.__name__}.{name} is not available before the import has finished")


def import_server() -> None:
    """Import jupyterhub.singleuser without the hub's modules; a later import of these gets the real ones.

    Where another release of JupyterHub does not allow that, the import is repeated in full and takes its usual time.
    The imported objects stay, so garbage collection is off during the import and skips them afterwards.
    """
    gc.disable()
    places = {name: LazyModule(name) for name in HUB_MODULES if name not in sys.modules}
    before = set(sys.modules)
    sys.modules.update(places)
    try:
        import_module("jupyterhub.singleuser")
    except Exception:  # noqa: BLE001  whatever it is, the import as ever says it better
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("jupyterhub", "sqlalchemy"):
                del sys.modules[name]
    for name, module in places.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    if hasattr(gc, "freeze"):  # Python 3.7
        gc.freeze()
    gc.enable()


def become_server(data: "Dict[str, Any]", port: int) -> None:
    """Run the server's script in this process, or replace this program by it; return only when a script has ended."""
    environ = dict(os.environ)
    environ.update(data["environ"])
    environ["JUPYTERHUB_SERVICE_URL"] = server_url(data, port)
    say("starting {} on port {}".format(data["argv"][0], port))
    try:
        path = own_script(data["argv"][0], environ)
        if not path:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)  # Python ignores them, and the new program would inherit that
            os.execvpe(data["argv"][0], data["argv"], environ)
    except OSError as error:
        code = OTHER_PROCESSOR if error.errno == errno.ENOEXEC else NO_PROGRAM
        raise Failed(code, "{} cannot be started: {}".format(data["argv"][0], error.strerror)) from error
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv, sys.path[0] = [path, *data["argv"][1:]], os.path.dirname(path)
    if os.path.basename(path) == "jupyterhub-singleuser":
        import_server()
    sys.modules["__main__"] = module = ModuleType("__main__")
    module.__file__ = path
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102


if __name__ == "__main__":
    sys.exit(main(sys.argv))
