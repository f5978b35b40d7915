"""What jobs use, from a thousand reporters: the cost of the activity service, and of a reporter itself.

``python benchmarks/activity.py [--reporters 1000] [--minutes 5]`` (seven minutes by default); prints one JSON object
a line. Nothing of Slurm runs. The service is real, in a process of its own with a SQLite database that waits for the
disk; the reporters are forged, each with a token and a moment of the minute of its own. Their requests are those of
``carme_hub/node/minutes.py``, without TLS and without the proxy, which have their own benchmark (``proxy.py``).

The reporter is real: it samples itself and four forged GPUs twenty times as often as in a job, and its cost is told for
a sample every ten seconds. Its peer is what a loop in a shell would run in place of each sample: ``ps`` for the memory
and the processor time of a user's processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import aiohttp  # noqa: E402
from measure import figure, load, log_progress, median, p95  # noqa: E402
from rig.forged_nvml import ForgedNVML  # noqa: E402

from carme_hub.activity.tokens import KEY, ReporterTokens  # noqa: E402
from carme_hub.domain.cluster.resources import Gpus  # noqa: E402
from carme_hub.domain.sessions.session import Request, Session, SessionState  # noqa: E402
from carme_hub.store.activity import ActivityStore  # noqa: E402
from carme_hub.store.engine import CarmeStore  # noqa: E402
from carme_hub.store.secrets import shared_secret  # noqa: E402
from carme_hub.store.sessions import SessionStore  # noqa: E402

#: Of one core, in the issue's words: the service with a thousand sessions, and a reporter.
SERVICE_GOAL, REPORTER_GOAL, REPORTER_MIB = 5.0, 0.3, 25.0
GPUS, INTERVAL, FASTER = 4, 10.0, 20
PROGRAMS = ("report", "minutes", "usage", "memory", "nvml")
TICKS = os.sysconf("SC_CLK_TCK")
CONFIG = """
c.CarmeStore.url = "sqlite:///{folder}/carme-hub.sqlite"
c.CarmeSlurm.cluster = "bench"
"""


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process, proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int) -> float:
    """Return the proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


@contextmanager
def service(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run the service; yield its process and its address."""
    config = folder / "jupyterhub_config.py"
    config.write_text(CONFIG.format(folder=folder))
    port = 20_000 + os.getpid() % 20_000
    prefix = "/services/activity/"
    environ = {
        **os.environ,
        "JUPYTERHUB_SERVICE_PREFIX": prefix,
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        "JUPYTERHUB_CLIENT_ID": "service-activity",
        "JUPYTERHUB_API_TOKEN": "of-the-service",
        "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
        "JUPYTERHUB_BASE_URL": "/",
        "PYTHONPATH": str(ROOT),
    }
    argv = [sys.executable, "-m", "carme_hub.services.activity", "--config", str(config)]
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=(folder / "log").open("wb"))
    try:
        yield process, f"http://127.0.0.1:{port}{prefix}api/v1/"
    finally:
        process.terminate()
        process.wait(20)


def sessions(folder: Path, count: int) -> tuple[list[str], ReporterTokens, ActivityStore]:
    """Write so many running sessions; return their ids, and what makes their tokens."""
    engine = CarmeStore(url=f"sqlite:///{folder}/carme-hub.sqlite").open()
    store, ids = SessionStore(engine), [str(uuid.uuid4()) for _ in range(count)]
    request = Request("a100", "base", Gpus("a100", GPUS), cpus=32, memory_mib=262_144, partition="gpu")
    for number, id in enumerate(ids):
        began = time.time() - 7200
        store.add(Session(id, "bench", f"user{number}", "", request, SessionState.RUNNING, began, job_id=number + 1))
    return ids, ReporterTokens(shared_secret(engine, "bench", KEY)), ActivityStore(engine, "bench")


def report(id: str, at: int) -> bytes:
    """Return what a reporter sends of a minute."""
    gpu = {
        **{"utilisation": 81.3, "utilisation_most": 99, "memory": 30_123, "power": 312.5, "temperature": 61},
        **{"throttled": 0, "ecc": 0},
    }
    minute = {
        **{"at": at, "seconds": 60, "cpu": 812.4, "memory": 41_000, "read": 1200, "written": 340},
        **{"kernels": 1, "terminals": 0, "runs": 0, "gpus": [gpu] * GPUS},
    }
    about = [{"uuid": f"GPU-{number}", "name": "NVIDIA A100", "memory": 40_960} for number in range(GPUS)]
    body = {"version": 1, "session": id, "node": "n1", "now": int(time.time()), "virtual": False, "gpus": about}
    return json.dumps({**body, "memory_limit": 262_144, "cpus": 32, "minutes": [minute]}).encode()


async def reporters(address: str, ids: list[str], tokens: ReporterTokens, minutes: int) -> list[float]:
    """Send each session's minutes at its own moment; return how long each answer took."""
    took: list[float] = []
    began = time.monotonic()

    async def one(http: aiohttp.ClientSession, id: str, offset: float) -> None:
        headers = {"Authorization": f"carme-activity {tokens.token(id)}", "Content-Type": "application/json"}
        for minute in range(minutes):
            await asyncio.sleep(max(0.0, began + 60 * minute + offset - time.monotonic()))
            at = int(time.time()) // 60 * 60 - 60
            sent = time.monotonic()
            async with http.post(f"{address}sessions/{id}/minutes", data=report(id, at), headers=headers) as answer:
                if answer.status != 204:
                    raise SystemExit(f"{answer.status}: {await answer.text()}")
            took.append(time.monotonic() - sent)

    # As the reporters do: a connection for each report.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*(one(http, id, random.uniform(0, 58)) for id in ids))
    return took


async def ready(address: str) -> None:
    """Wait until the service answers."""
    async with aiohttp.ClientSession() as http:
        for _ in range(200):
            try:
                async with http.get(f"{address}openapi.json") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise SystemExit("The service does not answer.")


def measure_service(count: int, minutes: int) -> bool:
    """Measure the service under so many reporters."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        ids, tokens, store = sessions(folder, count)
        with service(folder) as (process, address):
            asyncio.run(ready(address))
            log_progress(f"{count} reporters send for {minutes} minutes")
            before, began = processor_seconds(process.pid), time.monotonic()
            took = asyncio.run(reporters(address, ids, tokens, minutes))
            spent, passed = processor_seconds(process.pid) - before, time.monotonic() - began
            memory = memory_mib(process.pid)
        stored = sum(len(some) for nodes in store.minutes(ids, 0).values() for some in nodes.values())
        size = sum(path.stat().st_size for path in folder.glob("carme-hub.sqlite*")) / 2**20
    more = {"reporters": count, "load": load()}
    holds = figure("activity: service, share of one core", 100 * spent / passed, "%", goal=SERVICE_GOAL, **more)
    figure("activity: service, processor time of a report", 1000 * spent / len(took), "ms", **more)
    figure("activity: answer, median", median(took), "s", **more)
    figure("activity: answer, p95", p95(took), "s", **more)
    figure("activity: service, memory", memory, "MiB", **more)
    figure("activity: database for each session and minute", 1024 * size / (count * minutes), "KiB", **more)
    return figure("activity: reports that were lost", len(took) - stored, "reports", goal=0, **more) and holds


def measure_reporter(seconds: float) -> bool:
    """Measure a reporter that samples more often than in a job."""
    with tempfile.TemporaryDirectory() as name:
        folder, library = Path(name) / "session", Path(name) / "lib"
        folder.mkdir()
        library.mkdir()
        for program in PROGRAMS:
            shutil.copy(ROOT / f"carme_hub/node/{program}.py", folder / f"carme-{program}")
        forged = ForgedNVML(library)
        lines = "{0} uuid GPU-{0}\n{0} minor {0}\n{0} utilisation 50\n{0} used 1000\n{0} total 2000\n{0} ecc 0\n"
        forged.set("".join(lines.format(number) for number in range(GPUS)))
        part = {"url": "http://127.0.0.1:9/x", "token": "t", "interval": INTERVAL / FASTER}
        (folder / "data.json").write_text(json.dumps({"session": "one", "activity": part}))
        environ = {"SLURM_JOB_ID": f"bench-{os.getpid()}", "SLURMD_NODENAME": "n1"}
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(GPUS)))
        argv = ["/usr/bin/python3", "-IS", str(folder / "carme-report"), str(folder)]
        process = subprocess.Popen(argv, env={**forged.environ, **environ}, stdout=subprocess.DEVNULL)
        time.sleep(3)  # its start is no part of it
        before, began = processor_seconds(process.pid), time.monotonic()
        log_progress(f"a reporter samples for {seconds:.0f} s")
        time.sleep(seconds)
        spent, passed = processor_seconds(process.pid) - before, time.monotonic() - began
        memory = memory_mib(process.pid)
        process.terminate()
        process.wait(20)
    peer = os.times().children_user + os.times().children_system
    for _ in range(20):
        argv = ["ps", "-u", str(os.getuid()), "-o", "pid,rss,cputimes"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    of_peer = (os.times().children_user + os.times().children_system - peer) / 20
    share, of_ps = 100 * spent / passed / FASTER, 100 * of_peer / INTERVAL
    holds = figure("activity: reporter, share of one core", share, "%", goal=REPORTER_GOAL, peer=of_ps, gpus=GPUS)
    return figure("activity: reporter, memory", memory, "MiB", goal=REPORTER_MIB) and holds


def main() -> int:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reporters", type=int, default=1000)
    parser.add_argument("--minutes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which the reporter is measured")
    options = parser.parse_args()
    holds = [measure_reporter(options.seconds), measure_service(options.reporters, options.minutes)]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
