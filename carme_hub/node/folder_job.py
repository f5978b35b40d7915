#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, UP045, PTH106, PTH107, PTH116, PTH118, PTH120, PTH123
"""The batch script of a job that looks at a shared folder: how much is in it, or whether its checksums hold.

The same bytes for every job. It runs as a member of the folder, outside of any container, and writes nothing but its
own session folder, which it removes. A compute node needs /usr/bin/python3 (3.6 or later). The data document comes in
``CARME_DATA`` (zlib, base64), or is the file ``data.json`` in ``CARME_SESSION_FOLDER``: ``kind`` (measure or verify),
``path``, ``checksums``, ``report`` (url, nonce, ca_file), ``measure`` (the text of ``carme_hub.files.measure``).

It reports how far it is every few seconds, and what it has found at its end, for ten minutes again and again. Exit
codes: 70 bad data document, 74 the service did not answer, 75 it refused the report. TERM, as at the job's time limit,
ends it with what it has found so far.
"""

import base64
import collections
import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import ssl
import stat
import sys
import time
import zlib
from urllib.parse import urlsplit

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

BAD_DATA, NO_ANSWER, REFUSED = 70, 74, 75
#: Seconds between two reports, for one answer, and for which the last report is tried.
EVERY, ANSWER, LAST = 5.0, 20, 600.0
#: The most files that are looked for beside those of the list, names that are told of each fault, their length, files
#: that are read at the same time, bytes of a line, and bytes that are read at once.
MOST_UNLISTED, NAMES, LONGEST, AT_ONCE, LINE, CHUNK = 1000000, 20, 300, 4, 65536, 1 << 20
#: Seconds after which a measurement ends in part, unless the job's time ends before.
MEASURING = 86400.0
#: A line of sha256sum, and one of it with --tag, or of a BSD; a backslash in front: the name has escaped signs.
GNU = re.compile(rb"(\\)?([0-9a-fA-F]{64}) [ *](.+)")
TAGGED = re.compile(rb"(\\)?SHA256 \((.+)\) = ([0-9a-fA-F]{64})")
ESCAPED = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


class Stopped(Exception):
    """Slurm has asked the job to end."""


class Reporter:
    """Tells the service how far the job is. The answer to a report says nothing, but that it was taken."""

    def __init__(self, address: "Dict[str, str]") -> None:
        self.address, self.next, self.stopped = address, 0.0, False

    def progress(self, **counts: int) -> None:
        """Tell it, unless it was told a moment ago; no answer changes nothing. Raise where the job is to end."""
        if self.stopped:
            raise Stopped
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.send({"state": "running", **counts})

    def send(self, found: "Dict[str, Any]") -> int:
        """Send a report; return the status of the answer."""
        url = urlsplit(self.address["url"])
        headers = {"Authorization": "carme-nonce " + self.address["nonce"], "Content-Type": "application/json"}
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=self.address.get("ca_file") or None)
            line = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=ANSWER, context=context)
        else:
            line = http.client.HTTPConnection(url.hostname or "", url.port, timeout=ANSWER)  # type: ignore[assignment]
        with contextlib.closing(line):
            line.request("POST", url.path, json.dumps(found).encode("ascii"), headers)
            answer = line.getresponse()
            answer.read(65536)
            return answer.status

    def last(self, found: "Dict[str, Any]") -> int:
        """Send the last report until it is taken or refused; return the exit code."""
        until, pause = time.monotonic() + LAST, 1.0
        while True:
            status = 0
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = self.send(found)
            if status in (200, 204):
                return 0
            if 400 <= status < 500 and status not in (408, 429):
                return REFUSED
            if time.monotonic() > until:
                return NO_ANSWER
            time.sleep(pause)
            pause = min(2 * pause, 20.0)


def shown(name: "bytes") -> str:
    """Return a name for people and JSON: what is no text is escaped."""
    text = name.decode("utf-8", "backslashreplace")[:LONGEST]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


# -- verify ------------------------------------------------------------------------------------------------------------


def line_of(raw: "bytes") -> "Optional[Tuple[bytes, bytes]]":
    """Return the sum and the name of a line, None where it is none."""
    raw = raw.rstrip(b"\n").rstrip(b"\r") if raw.endswith(b"\r\n") else raw.rstrip(b"\n")
    found = GNU.fullmatch(raw)
    if found:
        escaped, sum_, name = found.groups()
    else:
        found = TAGGED.fullmatch(raw)
        if not found:
            return None
        escaped, name, sum_ = found.groups()
    if escaped:
        name = re.sub(rb"\\[\\nr]", lambda match: ESCAPED[match.group()], name)
    return sum_.lower(), name


def lines_of(path: "bytes") -> "Iterator[Optional[Tuple[bytes, bytes]]]":
    """Yield sum and name of each line of a list, None for one that is no such line; comments are left out."""
    with open(path, "rb") as file:
        while True:
            raw = file.readline(LINE)
            if not raw:
                return
            if raw.strip() and not raw.startswith(b"#"):
                yield line_of(raw)


def place_of(root: "bytes", folder: "bytes", name: "bytes") -> "Optional[bytes]":
    """Return the path of a file of the list, None where it leads out of the shared folder."""
    if name.startswith(b"/") or b"\0" in name:
        return None
    path = os.path.realpath(os.path.join(folder, name))
    return path if path.startswith(root + b"/") else None


def open_file(path: "bytes") -> int:
    """Open a regular file; a pipe or a device is an error, and does not hold the job up."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("no regular file")
    return handle


class Verification:
    """Compares files with a list of their checksums."""

    def __init__(self, root: str, checksums: str, reporter: Reporter) -> None:
        self.root = os.path.realpath(os.fsencode(root))
        found = place_of(self.root, self.root, os.fsencode(checksums))
        if found is None:
            raise OSError("the list of checksums is not in the folder")
        self.list, self.folder, self.reporter = found, os.path.dirname(found), reporter
        self.bytes = 0
        self.names: Dict[str, List[str]] = {}
        self.counts: collections.Counter[str] = collections.Counter()

    def outcome(self, sum_: "bytes", name: "bytes") -> "Tuple[str, bytes]":
        """Return what a file of the list is, with its name."""
        path = place_of(self.root, self.folder, name)
        if path is None:
            return "outside", name
        try:
            handle = open_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return "missing", name
        except OSError:
            return "unreadable", name
        found = hashlib.sha256()
        try:
            with open(handle, "rb", buffering=0) as file:
                while True:
                    part = file.read(CHUNK)
                    if not part:
                        break
                    found.update(part)
                    self.bytes += len(part)
                    if self.reporter.stopped:
                        raise Stopped
        except OSError:
            return "unreadable", name
        return ("verified" if found.hexdigest().encode() == sum_ else "differs"), name

    def count(self, outcome: str, name: "bytes") -> None:
        """Count a file, and keep the names of some that are not as they should be."""
        self.counts[outcome] += 1
        if outcome != "verified" and len(self.names.setdefault(outcome, [])) < NAMES:
            self.names[outcome].append(shown(name))

    def run(self) -> "Dict[str, Any]":
        """Return what is found; in part where the job is to end before."""
        os.close(open_file(self.list))
        total_files = total_bytes = 0
        complete, unlisted = True, None
        listed = {hash(self.list)}
        try:
            for each in lines_of(self.list):
                self.reporter.progress(files=0, total_files=total_files, bytes=0, total_bytes=total_bytes)
                if each is None:
                    self.counts["bad_lines"] += 1
                    continue
                total_files += 1
                path = place_of(self.root, self.folder, each[1])
                with contextlib.suppress(OSError):
                    total_bytes += os.stat(path).st_size if path else 0
                if path and len(listed) <= MOST_UNLISTED:
                    listed.add(hash(path))
            with concurrent.futures.ThreadPoolExecutor(min(AT_ONCE, len(os.sched_getaffinity(0)))) as pool:
                self.compare(pool, total_files, total_bytes)
            if len(listed) <= MOST_UNLISTED:
                unlisted = self.beside(listed)
        except Stopped:
            complete = False
        counts = {name: self.counts[name] for name in ("verified", "differs", "missing", "unreadable", "outside")}
        more = {"files": total_files, "bad_lines": self.counts["bad_lines"], "unlisted": unlisted, "bytes": self.bytes}
        return {**counts, **more, "complete": complete, "names": self.names, "digest": self.digest()}

    def compare(self, pool: "Any", total_files: int, total_bytes: int) -> None:
        """Compare all files, some at the same time."""
        running: collections.deque[Any] = collections.deque()

        def finish_one() -> None:
            while not running[0].done():
                concurrent.futures.wait([running[0]], timeout=EVERY)
                tell()
            self.count(*running.popleft().result())

        def tell() -> None:
            done = sum(self.counts.values()) - self.counts["bad_lines"]
            self.reporter.progress(files=done, total_files=total_files, bytes=self.bytes, total_bytes=total_bytes)

        for each in lines_of(self.list):
            if each is None:
                continue
            running.append(pool.submit(self.outcome, *each))
            if len(running) >= 2 * AT_ONCE:
                finish_one()
            tell()
        while running:
            finish_one()

    def beside(self, listed: "Any") -> int:
        """Return how many files are in the folder of the list, and below, that it does not name."""
        found = 0
        for folder, _, names in os.walk(self.folder):
            self.reporter.progress(
                files=sum(self.counts.values()) - self.counts["bad_lines"], bytes=self.bytes, total_bytes=self.bytes
            )
            found += sum(hash(os.path.realpath(os.path.join(folder, name))) not in listed for name in names)
        return found

    def digest(self) -> str:
        """Return the SHA-256 of the list."""
        found = hashlib.sha256()
        with open(self.list, "rb") as file:
            for part in iter(lambda: file.read(CHUNK), b""):
                found.update(part)
        return found.hexdigest()


# -- measure -----------------------------------------------------------------------------------------------------------


def measure(text: str, root: str, reporter: Reporter) -> "Dict[str, Any]":
    """Return how much is in a folder, and its largest folders; in part where the job is to end before."""
    module: Dict[str, Any] = {"__name__": "carme_measure"}
    exec(compile(text, "carme-measure", "exec"), module)  # noqa: S102  the hub's own program
    module["MOST_SECONDS"] = MEASURING
    stopped = [0.0]

    def clock() -> float:
        try:
            reporter.progress()
        except Stopped:
            stopped[0] = 2 * MEASURING  # beyond its end
        return time.monotonic() + stopped[0]

    found: Dict[str, Any] = module["measured"](root, clock)
    return found


# -- the job -----------------------------------------------------------------------------------------------------------


def read_data(folder: str) -> "Dict[str, Any]":
    """Return the data document, and remove it with the session folder; it has the nonce."""
    packed = os.environ.pop("CARME_DATA", "")
    if packed:
        return dict(json.loads(zlib.decompress(base64.b64decode(packed))))
    path = os.path.join(folder, "data.json")
    with open(path, encoding="utf-8") as file:
        found = dict(json.load(file))
    with contextlib.suppress(OSError):
        os.remove(path)
        os.rmdir(folder)
    return found


def work(data: "Dict[str, Any]", reporter: Reporter) -> "Dict[str, Any]":
    """Do it; return the last report."""
    root = str(data["path"])
    try:
        with os.scandir(root):
            pass
        reporter.progress()
        if data["kind"] == "verify":
            result = Verification(root, str(data["checksums"]), reporter).run()
        else:
            result = measure(data["measure"], root, reporter)
    except Stopped:
        return {"state": "failed", "problem": "the job was ended before it had found anything"}
    except (ImportError, SyntaxError, MemoryError) as error:  # an older Python, or a list of very many files
        return {"state": "failed", "problem": f"{type(error).__name__}: {error}"[:500]}
    except OSError as error:
        what = shown(os.fsencode(error.filename)) + ": " if error.filename is not None else ""
        return {"state": "failed", "problem": (what + (error.strerror or str(error)))[:500]}
    return {"state": "done", "result": result}


def main() -> int:
    """Read the document, do it, and report."""
    os.umask(0o077)
    os.nice(10)
    try:
        data = read_data(os.environ.get("CARME_SESSION_FOLDER", ""))
        reporter = Reporter(dict(data["report"]))
    except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        sys.stderr.write(f"bad data document: {error}\n")
        return BAD_DATA

    def stop(*_: object) -> None:
        reporter.stopped = True

    signal.signal(signal.SIGTERM, stop)
    return reporter.last(work(data, reporter))


if __name__ == "__main__":
    sys.exit(main())
