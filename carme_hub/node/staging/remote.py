# ruff: noqa: UP006, UP035, UP045, PTH103, PTH112, PTH116, PTH118, PTH119, PTH120, PTH202
"""Copies from and to what rclone speaks, by rclone: S3, sftp, WebDAV and the others of its list.

The user's own settings of rclone have the credentials (``~/.config/rclone/rclone.conf``, 0600); this program never
reads them, and they are in no argument, variable or log. rclone compares the checksum of each file that it transfers
where the other side has any, skips what is there already, and begins a file again that was interrupted; so nothing is
read once more to compare it. On storage of objects an object appears when it is complete. Elsewhere (sftp, WebDAV)
files go into a folder ``.carme-TAG….part`` beside their target, are renamed from there, and then compared as a whole.

Each start of rclone costs a tenth of a second and more: what one copies is one start, and only what is not clear from
its end is asked for.

carme-stage loads this file (``carme-stage-remote`` on a node). It runs as the user.
"""

import ctypes
import json
import os
import re
import signal
import subprocess

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple  # noqa: F401  in comments for Python 3.6

PR_SET_PDEATHSIG, LIBC = 1, ctypes.CDLL(None)
#: Seconds for a question to the other side.
ASK_SECONDS = 120.0
#: A part of an error of rclone or a server that could be a secret, or a signed address.
SECRET = re.compile(
    r"(?i)((?:secret|token|signature|password|pass|key|credential)[\w-]*)(\s*[=:]\s*)(\"[^\"]*\"|[^\s&,;]+)"
)
#: The user and password of an address, and of a header.
IN_ADDRESS = re.compile(r"(?i)(://)[^/\s@]+@|\b((?:bearer|basic)\s+)[\w+/=._~-]{6,}")
#: A link travels as a small file NAME.rclonelink, and is a link again when it comes back; otherwise it would be lost.
LINKS = ("--links",)
#: The names of errors of rclone in plain words.
NOT_FOUND = ("directory not found", "object not found", "file does not exist", "NoSuchBucket", "NoSuchKey")


class NoRemote(Exception):
    """The other side cannot be used; the message says why."""


def without_secrets(text: str) -> str:
    """Return an error of rclone in one line, without what could be a secret."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return IN_ADDRESS.sub(lambda found: f"{found.group(1) or found.group(2)}…", SECRET.sub(r"\1\2…", line))[:400]


def settings_file(home: str) -> str:
    """Return the path of the user's settings of rclone.

    Raises:
        NoRemote: they are missing, or others can read them.
    """
    path = os.environ.get("RCLONE_CONFIG") or os.path.join(home, ".config", "rclone", "rclone.conf")
    try:
        found = os.stat(path)
    except OSError as error:
        raise NoRemote(f"{path}: {error.strerror}; `rclone config` makes it") from error
    if found.st_mode & 0o077:
        raise NoRemote(f"{path} holds credentials, and others can read it: chmod 600 {path}")
    return path


class Rclone:
    """rclone with one user's settings."""

    def __init__(self, program: str, home: str, parallel: int) -> None:
        self.program, self.parallel = program, parallel
        self.features = {}  # type: Dict[str, bool]
        #: What the last transfer has copied and found to be there, in files.
        self.moved = 0
        self.environ = {"HOME": home, "PATH": os.defpath, "LANG": "C.UTF-8", "RCLONE_CONFIG": settings_file(home)}
        for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE"):
            if name in os.environ:
                self.environ[name] = os.environ[name]

    def start(self, arguments: "Sequence[str]") -> "Any":
        """Start rclone; it ends with this program."""
        argv = [self.program, *arguments, "--use-json-log", "--ask-password=false"]
        try:
            return subprocess.Popen(
                argv,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )
        except OSError as error:
            mend = "; the package rclone has it" if isinstance(error, FileNotFoundError) else ""
            raise NoRemote(f"{self.program} cannot be started on this node: {error.strerror}{mend}") from error

    def ask(self, *arguments: str) -> "Any":
        """Return the JSON that a command of rclone prints."""
        process = self.start(arguments)
        try:
            out, err = process.communicate(timeout=ASK_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise NoRemote(f"{arguments[-1]} did not answer within {ASK_SECONDS:.0f} seconds") from error
        if process.returncode:
            raise NoRemote(self.reason(err))
        try:
            return json.loads(out)
        except ValueError as error:
            raise NoRemote(f"rclone {arguments[0]} printed no JSON") from error

    @staticmethod
    def reason(stderr: bytes) -> str:
        """Return the last error of rclone's log."""
        reason = "rclone failed"
        for line in stderr.decode("utf-8", "replace").splitlines():
            message = parsed(line)
            if message.get("level") in ("error", "fatal", "critical", "warning") or not message:
                reason = str(message.get("msg") or line) or reason
        return without_secrets(reason)

    def entry(self, place: str) -> "Optional[Dict[str, Any]]":
        """Return what is at a place as rclone describes it, None where nothing is."""
        try:
            found = self.ask("lsjson", "--stat", place)
        except NoRemote as error:
            if any(words in str(error) for words in NOT_FOUND):
                return None
            raise
        return found if isinstance(found, dict) else None

    def size(self, place: str) -> "Tuple[int, int]":
        """Return bytes and files at a place."""
        found = self.ask("size", "--json", place)
        return max(0, int(found.get("bytes", 0))), int(found.get("count", 0))

    def renames(self, place: str) -> bool:
        """Return whether the other side renames files, as file servers do and storage of objects does not."""
        remote = place.partition(":")[0] + ":"
        if remote not in self.features:
            features = self.ask("backend", "features", remote).get("Features", {})
            self.features[remote] = bool(features.get("Move"))
        return self.features[remote]

    def transfer(
        self, verb: str, source: str, target: str, told: "Sequence[Any]", options: "Sequence[str]" = ()
    ) -> bool:
        """Run ``copy``, ``copyto``, ``check``, ``move`` or ``moveto``; return whether all of it is done.

        Args:
            told: note, which takes bytes and files that have been transferred since it was called last; fail, which
                takes the name of a file and why it is not transferred; stop, which returns whether to end; and, if it
                is there, known, which takes the bytes and files that rclone knows to be transferred in all.
        """
        note, fail, stop = told[:3]
        known = told[3] if len(told) > 3 else None
        self.moved = 0
        arguments = [verb, source, target, f"--transfers={self.parallel}", f"--checkers={2 * self.parallel}"]
        process = self.start([*arguments, "--stats=1s", "--stats-log-level=NOTICE", "--retries=3", *LINKS, *options])
        before, failed, last = (0, 0), {}, ""  # type: Tuple[int, int], Dict[str, str], str
        for line in process.stderr:
            if stop():
                process.kill()
            message = parsed(line.decode("utf-8", "replace"))
            stats = message.get("stats")
            if isinstance(stats, dict):
                seen = int(stats.get("bytes", 0)), int(stats.get("transfers", 0))
                note(max(0, seen[0] - before[0]), max(0, seen[1] - before[1]))
                before = max(before, seen)
                self.moved = seen[1] + int(stats.get("checks", 0))
                if known:
                    known(int(stats.get("totalBytes", 0)), int(stats.get("totalTransfers", 0)))
            elif message.get("level") in ("error", "fatal", "critical"):
                last = without_secrets(str(message.get("msg", "")))
                if message.get("object"):
                    failed[str(message["object"])] = last
        process.stdout.read()
        if process.wait() == 0:
            return True
        for name, why in list(failed.items())[:100] or [(target, last or f"rclone ended with {process.returncode}")]:
            fail(name, why)
        return False


def parsed(line: str) -> "Dict[str, Any]":
    """Return one line of rclone's log."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def fetch(rclone: Rclone, source: str, target: str, *told: "Any") -> bool:
    """Bring an object, or all below a prefix, into a folder of this node; ``told``: note, fail, stop, known."""
    if target.endswith("/") and not (rclone.entry(source) or {"IsDir": True}).get("IsDir"):
        target += os.path.basename(source.rpartition(":")[2])
    reasons = []  # type: List[Tuple[str, str]]
    mine = (told[0], lambda name, why: reasons.append((name, why)), *told[2:])
    os.makedirs(os.path.dirname(target.rstrip("/")), exist_ok=True)
    # It copies a file to a file, and what is in a folder into a folder.
    if rclone.transfer("copyto", source, target.rstrip("/"), mine):
        if rclone.moved or is_there(rclone, source):
            os.makedirs(os.path.dirname(target) if rclone.moved else target, exist_ok=True)  # an empty one
            return True
        reasons = []
    elif not any(word in why for _, why in reasons for word in NOT_FOUND) or is_there(rclone, source):
        for name, why in reasons:
            told[1](source if name == target.rstrip("/") else name, why)
        return False
    told[1](source, "there is nothing under this name")
    return False


def is_there(rclone: Rclone, place: str) -> bool:
    """Return whether something is at a place. Storage of objects has no folders, and says that any name is one."""
    found = rclone.entry(place)
    return found is not None and (not found.get("IsDir") or rclone.renames(place) or rclone.size(place)[1] > 0)


def send(rclone: Rclone, source: str, target: str, tag: str, *told: "Any", late: bool = False) -> bool:
    """Bring a file, or all below a folder, to the other side; ``told``: note, fail, stop."""
    folder = os.path.isdir(source)
    if not folder and (target.endswith(("/", ":"))):
        target += os.path.basename(source)
    options = ["--update"] if late else []  # what is newer there stays
    quiet = (lambda *_: None, *told[1:])
    if not rclone.renames(target):
        return rclone.transfer("copy" if folder else "copyto", source, target, told, options)
    final = target.rstrip("/") if folder else parent_of(target)
    above, name = (parent_of(final), final[len(parent_of(final)) :].strip("/")) if folder else (final, "")
    # Beside a folder and not in it: rclone moves nothing between places of which one is inside the other.
    part = f"{above}{'' if above.endswith(':') else '/'}.carme-{tag}{'-' + name if name else ''}.part"
    where = part if folder else f"{part}/{os.path.basename(source)}"
    # What was renamed there by a pass that was interrupted is not sent again.
    again = [f"--compare-dest={final}"] if folder and rclone.entry(final) is not None else []
    if not rclone.transfer("copy" if folder else "copyto", source, where, told, [*options, *again]):
        return False
    if rclone.entry(part) is None:
        return compared(rclone, source, target, folder, quiet)
    moved = rclone.transfer(*(("move", part, final) if folder else ("moveto", where, target)), quiet)
    if moved:
        rclone.start(["rmdirs", part]).communicate()
    return moved and compared(rclone, source, target, folder, quiet)


def parent_of(target: str) -> str:
    """Return the folder of a place on the other side."""
    remote, colon, path = target.partition(":")
    head, slash, _ = path.rpartition("/")
    return remote + colon + (head or slash)


def compared(rclone: Rclone, source: str, target: str, folder: bool, told: "Sequence[Any]") -> bool:
    """Return whether the other side has what is here, by checksums where it has any, else by size."""
    if folder:
        return rclone.transfer("check", source, target, told, ["--one-way"])
    there, size = rclone.entry(target), os.path.getsize(source)
    if there is None or there.get("Size") != size:
        told[1](source, f"{target} does not have its size")
        return False
    only = ["--one-way", f"--include=/{escaped(os.path.basename(source))}"]
    if os.path.basename(source) != target.rpartition("/")[2].rpartition(":")[2]:
        return True  # under another name; rclone compared the checksum of the transfer itself
    return rclone.transfer("check", os.path.dirname(source), parent_of(target), told, only)


def escaped(name: str) -> str:
    """Return a file's name as a filter of rclone that matches it alone."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", name)
