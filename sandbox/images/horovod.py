"""Build Horovod's wheel from its source release, with PyTorch and gloo, and keep it: two to five minutes, once.

Its last release (0.28.1) is older than the C++ standard that torch's headers need, and has no wheels. Its source stays
unchanged: a compiler wrapper selects C++17 where CMakeLists.txt names 14, and leaves out debugging information (1.8 GiB
for each compiler process in place of 2.5). A wheel fits one torch, one Python and one compiler, so its name in the
cache has these. Where it cannot be built, the reason is kept beside it for a day, so that not every start of a demo
tries again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.sandbox.images.packages import Progress, tools, wrapped

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
#: What its setup.py and CMakeLists.txt need; versions as tested.
TOOLS = ("setuptools>=80", "wheel", "packaging", "cffi", "cloudpickle", "psutil", "pyyaml", "cmake>=3.25")
COMPILER = """#!/bin/sh
# Put before g++ for Horovod 0.28.1: its C++14 is not enough for torch, and -g doubles what a compiler needs.
for word; do
    shift
    case $word in
        -std=c++11 | -std=c++14 | -std=gnu++11 | -std=gnu++14) word=-std=c++17 ;;
        -g | -g[0-9]) continue ;;
    esac
    set -- "$@" "$word"
done
exec g++ "$@"
"""
#: The environment of its build; without it CMake 4 refuses gloo's own file, and symbols take 60 MB.
SETTINGS = {
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    "LDFLAGS": "-Wl,-s",
    **{f"HOROVOD_WITH_{name}": "1" for name in ("PYTORCH", "GLOO")},
    **{f"HOROVOD_WITHOUT_{name}": "1" for name in ("MPI", "TENSORFLOW", "MXNET")},
}
#: The memory that one compiler process may take, in bytes.
MEMORY_PER_JOB = 2 << 30
RETRY = 86_400.0
BUILD_HINT = (
    "Build it with `carme-hub image build --training` on a machine that has g++, make and python3-dev, "
    "or add an image of your own that has it: `carme-hub image add`."
)
_PERCENT = re.compile(rb"\[ *(\d{1,3})%\]")


def wheel(cache: Path, opt: Path, progress: Progress) -> Path | str:
    """Return the wheel for the torch in ``opt`` (later /opt), built if missing; or the reason why there is none."""
    folder = cache / f"horovod-{_key(opt)}"
    failed = folder.with_suffix(".failed")
    if not folder.is_dir():
        if failed.exists() and time.time() - failed.stat().st_mtime < RETRY:
            return failed.read_text(encoding="utf-8")
        work = cache / ".building-horovod"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        try:
            _build(opt, work, progress)
            (work / "dist").rename(folder)
            failed.unlink(missing_ok=True)
        except SandboxError as error:
            failed.write_text(str(error), encoding="utf-8")
            return str(error)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    [found] = folder.glob("*.whl")
    return found


def _key(opt: Path) -> str:
    """Return the versions and the digest of everything to which a wheel is bound."""
    [torch] = (path.name.removeprefix("torch-") for path in _site(opt).glob("torch-*.dist-info"))
    compiler = shutil.which("g++")
    gxx = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True) if compiler else None
    parts = (torch, _site(opt).parent.name, gxx.stdout if gxx else "none", SHA256, TOOLS, COMPILER, SETTINGS)
    return f"{VERSION}-{torch.removesuffix('.dist-info')}-{sha256(repr(parts).encode()).hexdigest()[:12]}"


def _site(opt: Path) -> Path:
    [site] = opt.glob("venv/lib/python3.*/site-packages")
    return site


def _build(opt: Path, work: Path, progress: Progress) -> None:
    for program in ("g++", "make"):
        if not shutil.which(program):
            raise SandboxError(f"Horovod is built from source, and there is no {program} here.")
    for name, text in (("hvd-cxx", COMPILER), ("horovod.txt", f"horovod=={VERSION} --hash=sha256:{SHA256}\n")):
        (work / name).write_text(text, encoding="utf-8")
    (work / "hvd-cxx").chmod(0o755)
    progress(f"Building Horovod {VERSION} from its source release (two to five minutes, once)")
    tools(opt, work, *TOOLS)
    argv = ["/opt/venv/bin/python", "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
    argv += ["--require-hashes", "-r", "/work/horovod.txt", "-w", "/work/dist"]
    wrap, environ = wrapped(opt, None, {work: "/work"})
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    jobs = max(1, min(len(os.sched_getaffinity(0)), memory // MEMORY_PER_JOB))
    environ |= {
        **SETTINGS,
        "PATH": "/work/tools/bin:/usr/bin:/bin",
        "PYTHONPATH": "/work/tools",
        "TMPDIR": "/work",
        "CXX": "/work/hvd-cxx",
        "MAKEFLAGS": f"-j{jobs}",  # setup.py says -j8 otherwise
    }
    _run_with_progress(
        [*wrap, "--", *argv], environ, work / "log", lambda done: progress(f"Building Horovod: {done} %")
    )


def _run_with_progress(argv: list[str], environ: dict[str, str], log: Path, progress: Callable[[int], None]) -> None:
    """Run the build, and report its percentage every 20 s."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env=environ, stdout=out, stderr=out, stdin=subprocess.DEVNULL, umask=0o022)
    last_report, last = time.monotonic(), -1
    try:
        while process.poll() is None:
            time.sleep(0.5)
            if time.monotonic() - last_report > 20:
                found = _PERCENT.findall(log.read_bytes())
                if found and int(found[-1]) > last:
                    last_report, last = time.monotonic(), int(found[-1])
                    progress(last)
    except BaseException:
        process.kill()
        raise
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        error_lines = [line for line in lines if "error" in line.lower()][:5]
        raise SandboxError("\n".join(("Horovod could not be built:", *error_lines, "…", *lines[-10:])))
