#!/usr/bin/env python3
# ruff: noqa: PTH100, PTH103, PTH113, PTH118, PTH120, PTH123, PTH207, SIM105, UP022
"""buildah for the build of one image of a user, and the filter by which it works without root (for ``system.py``).

What a system's packages ask for of a root, other owners of files and other users of processes, is answered as done
without being done (seccomp(2)), as ``ch-image build --force=seccomp`` of Charliecloud does: in an image everything
belongs to root anyway, and a session runs as its user.
"""

import ctypes
import glob
import importlib.util
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carme_hub.node.images import layer as parts
else:  # beside this file, which is a file of the session folder
    sys.dont_write_bytecode, _before = True, sys.dont_write_bytecode
    _spec = importlib.util.spec_from_file_location(
        "carme_build", os.path.join(os.path.dirname(os.path.abspath(__file__)), "layer.py")
    )
    parts = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(parts)
    sys.dont_write_bytecode = _before

#: Exit code of a build that fails; others are of ``layer`` and ``system``.
NOT_BUILT = 1
#: How much the folder of the node may hold, as a multiple of the image: buildah copies a system for each step.
COPIES = 8
_SIGNATURES = "/etc/containers/registries.d"
#: System calls about owners and users, by the name of the processor and its number for the kernel (seccomp(2)).
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = {
    "x86_64": (92, 93, 94, 260, 105, 106, 113, 114, 116, 117, 119, 122, 123),
    "aarch64": (54, 55, 143, 144, 145, 146, 147, 149, 151, 152, 159),
}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
_ALLOW, _ANSWER_DONE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with 0


def root_filter(machine: str) -> bytes:
    """Return the filter as the kernel takes it, b"" where the numbers of the processor's calls are not known."""
    if machine not in _CALLS:
        return b""
    calls = _CALLS[machine]
    lines = [(0x20, 0, 0, 4), (0x15, 0, len(calls) + 1, _ARCHITECTURES[machine]), (0x20, 0, 0, 0)]
    lines += [(0x15, len(calls) - number, 0, call) for number, call in enumerate(calls)]
    lines += [(0x06, 0, 0, _ALLOW), (0x06, 0, 0, _ANSWER_DONE)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def become_root(argv: "list[str]") -> None:
    """Become a program for which changes of owners and users succeed, without being made."""
    code = root_filter(platform.machine())
    if code:
        libc = ctypes.CDLL(None, use_errno=True)
        text = ctypes.create_string_buffer(code, len(code))
        given = ctypes.create_string_buffer(struct.pack("HP", len(code) // 8, ctypes.addressof(text)))
        for words in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, given, 0, 0)):
            if libc.prctl(*words):
                raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")
    os.execvp(argv[0], argv)  # noqa: S606


class Group:
    """A process and all that it started, which end together."""

    def __init__(self, process: "Any") -> None:
        self._process = process

    def terminate(self) -> None:
        """End it."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Begun:
    """A process in a group of its own, which ends with a block: no signal can come between its begin and the block."""

    def __init__(self, argv: "list[str]", environ: "Any" = None) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._before = before
        self.process = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )

    def wait(self) -> int:
        """Return how it ended; signals come from now on."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
        return self.process.wait()

    def end(self, grace: float = 0.0) -> None:
        """End it and all that it started, at the latest after so many seconds."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
        if grace:
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                pass
        Group(self.process).terminate()
        self.process.wait()


class Buildah:
    """The node's buildah, for one build.

    Args:
        work: folder of this node for its containers and layers. most: bytes that an image may have.
    """

    def __init__(self, work: str, most: int, *, network: bool) -> None:
        self.work, self.most, self.network, self.driver = work, most, network, "vfs"
        for name in ("run", "tmp", "empty"):
            os.makedirs(os.path.join(work, name), mode=0o700, exist_ok=True)
        self.environ = {
            "HOME": work,
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "TMPDIR": os.path.join(work, "tmp"),
            "XDG_RUNTIME_DIR": os.path.join(work, "run"),
            "BUILDAH_ISOLATION": "chroot",
            "_CONTAINERS_USERNS_CONFIGURED": "done",
        }
        self._look_for_signatures(os.path.join(work, ".config/containers/registries.d"))
        auth = os.path.join(os.environ.get("HOME", "/"), ".config/containers/auth.json")
        if os.path.isfile(auth):
            self.environ["REGISTRY_AUTH_FILE"] = auth
        for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
            if name in os.environ:
                self.environ[name] = os.environ[name]

    def _look_for_signatures(self, folder: str) -> None:
        """Have signatures looked for where the node says, and nowhere else: a root has a folder that is not ours."""
        os.makedirs(folder, mode=0o700)
        says = False
        for file in glob.glob(os.path.join(_SIGNATURES, "*.yaml")):
            shutil.copy(file, folder)
            with open(file, encoding="utf-8") as opened:
                says = says or any(line.startswith("default-docker") for line in opened)
        if not says:
            with open(os.path.join(folder, "carme.yaml"), "w", encoding="utf-8") as opened:
                opened.write(f"default-docker:\n  lookaside: file://{self.work}/signatures\n")

    def choose_driver(self) -> None:
        """Have layers lie over each other where the kernel and the node's disk can do that, else be copied."""
        self.driver = "overlay"
        try:
            self.ask("from", "--name", "carme-try", "scratch")
            self.ask("mount", "carme-try")
            self.ask("rm", "carme-try")
        except parts.CannotBuild:
            parts.say("this node cannot lay layers over each other (overlay), so each step copies the system")
            self.driver = "vfs"

    def words(self, *words: str) -> "list[str]":
        """Return a command of buildah."""
        places = ["--root", os.path.join(self.work, self.driver), "--runroot", os.path.join(self.work, "run")]
        return ["buildah", *places, "--storage-driver", self.driver, *words]

    def run(self, *words: str, network: bool = True) -> None:
        """Run a command of buildah whose output is of interest; end it when it has written too much.

        Raises:
            CannotBuild: it failed.
        """
        argv = [*([] if network else ["unshare", "--net", "--"]), *self.words(*words)]
        begun = Begun(argv, self.environ)
        bound = parts.Bound(self.work, COPIES * self.most, Group(begun.process))
        try:
            status = begun.wait()
        finally:
            bound.stop()
            begun.end()
        if bound.broken:
            raise parts.CannotBuild(parts.TOO_LARGE, "the build takes too much of the node's disk")
        if status:
            raise parts.CannotBuild(NOT_BUILT, "buildah did not build it; its last lines say why")

    def ask(self, *words: str) -> str:
        """Return what a command of buildah says.

        Raises:
            CannotBuild: it failed.
        """
        return self.call(self.words(*words))

    def call(self, argv: "list[str]", allowed: "tuple[int, ...]" = (0,)) -> str:
        """Return what a command says."""
        done = subprocess.run(
            argv,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode not in allowed:
            name = next((each for each in ("buildah", "cp", "chmod", "unshare") if each in argv), argv[0])
            raise parts.CannotBuild(NOT_BUILT, f"{name} failed: {done.stderr.strip()[-500:]}")
        if done.returncode:
            self.told = done.stderr
        return done.stdout.strip()

    told = ""

    def copy(self, tree: str, to: str) -> int:
        """Copy what is in a folder, as far as the user may read it; return how many entries are left out."""
        argv = ["cp", "--archive", "--no-preserve=ownership,xattr,context", "--", f"{tree}/.", to]
        self.told = ""
        self.call(argv, allowed=(0, 1))
        lines = [line for line in self.told.splitlines() if line]
        if any("Permission denied" not in line for line in lines):
            raise parts.CannotBuild(NOT_BUILT, f"{tree} cannot be copied: {self.told.strip()[-500:]}")
        return len(lines)
