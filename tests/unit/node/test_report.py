"""A job's use is kept in the session folder and sent each minute; no minute is lost while the hub is away."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rig.forged_nvml import ForgedNVML

from carme_hub.node import minutes, report

PROGRAMS = Path(report.__file__).parent
START = 1_800_000_000 - 1_800_000_000 % 60


class ForgedUsage:
    """Says what it was told to, whatever the job does."""

    def __init__(self) -> None:
        self.values: dict[str, int | None] = {
            **{"cpu": 100, "memory": 500, "read": 10, "written": 20, "received": 1, "sent": 2, "tmp_free": 9000}
        }

    def sample(self, _now: float) -> dict[str, int | None]:
        return dict(self.values)


class ForgedDevice:
    """A GPU that says what it was told to."""

    uuid, name = "GPU-aaaa", "NVIDIA H200"

    def __init__(self, **values: Any) -> None:
        every = ("utilisation", "memory", "power", "temperature", "throttled", "ecc", "xids", "processes")
        self.values: dict[str, Any] = {**dict.fromkeys(every), **values}

    def memory(self) -> tuple[int, int]:
        return 0, 143771

    def sample(self, _pids: Any = None) -> dict[str, Any]:
        return dict(self.values)


class Service:
    """Takes minutes over real HTTP, or answers as it was told to."""

    def __init__(self) -> None:
        self.status, self.bodies, self.headers, self.paths = 204, [], [], []  # type: ignore[var-annotated]
        #: What it answers beside the status.
        self.text = '{"error": "wrong-minutes", "message": "No."}'
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.status == 204:
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                    outer.paths.append(self.path)
                text = outer.text.encode() if outer.status != 204 else b""
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_words: Any) -> None:
                """Write nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/services/activity/api/v1/sessions/one/minutes"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def minutes(self) -> list[dict[str, Any]]:
        return [minute for body in self.bodies for minute in body["minutes"]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.close()


class Job:
    """A reporter with a clock that the test moves."""

    def __init__(self, folder: Path, url: str, *devices: ForgedDevice, session: str = "one") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.now, self.usage, self.folder = float(START), ForgedUsage(), folder
        part = {"session": session, "url": url, "token": "secret", "virtual": True}
        self.reporter = report.Reporter(
            part,
            self.usage,
            devices,
            minutes,
            {"node": "n1", "memory_limit": 8192, "cpus": 4},
            str(folder),
            clock=lambda: self.now,
            wall=lambda: self.now,
        )

    def run(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.reporter.step()
            self.now += 10


def read_ring(path: Path) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Read a ring as its documentation says."""
    content = path.read_bytes()
    head = json.loads(content[: report.HEADER_BYTES])
    record = struct.Struct("<8I" + "BBHIB" * len(head["gpus"]))
    assert record.size == head["record"]
    return head, [row for row in record.iter_unpack(content[report.HEADER_BYTES :]) if row[0]]


def test_each_minute_is_sent_once_with_what_is_known(tmp_path: Path, service: Service) -> None:
    device = ForgedDevice(utilisation=80, memory=4096, power=400, temperature=60, throttled=False, ecc=5, xids=[])
    job = Job(tmp_path, service.url, device)
    job.run(30)
    job.usage.values |= {"cpu": 300, "memory": 700}
    device.values |= {"utilisation": 40, "memory": 5000, "throttled": True, "ecc": 7, "xids": [79]}
    job.run(10)
    device.values |= {"xids": []}
    job.run(20)
    assert service.bodies == [], "its minute is not over"
    job.run(120)
    first = service.minutes[0]
    assert first == {
        "at": START,
        "seconds": 60,
        "cpu": 200.0,
        "memory": 700,
        "read": 60,
        "written": 120,
        "gpus": [
            {
                **{"utilisation": 60.0, "utilisation_most": 80, "memory": 5000, "power": 400.0, "temperature": 60},
                **{"throttled": 30, "ecc": 2, "xids": [79]},
            }
        ],
    }
    assert [each["at"] for each in service.minutes] == [START, START + 60]
    body = service.bodies[0]
    assert (body["session"], body["node"], body["virtual"], body["version"]) == ("one", "n1", True, 1)
    assert body["gpus"] == [{"uuid": "GPU-aaaa", "name": "NVIDIA H200", "memory": 143771}]
    assert START + 60 <= body["now"] <= START + 120
    assert service.headers[0]["Authorization"] == "carme-activity secret"


def test_what_is_unknown_is_left_out_and_is_never_0(tmp_path: Path, service: Service) -> None:
    job = Job(tmp_path, service.url, ForgedDevice(memory=100))  # as of a MIG device
    job.usage.values |= {"cpu": None, "read": None}
    job.run(180)
    assert service.minutes[0] == {
        **{"at": START, "seconds": 60, "memory": 500, "written": 120},
        "gpus": [{"memory": 100}],
    }
    _, rows = read_ring(tmp_path / report.RING)
    unknown = (1 << 32) - 1
    assert rows[0][:8] == (START, unknown, 500, unknown, 20, 1, 2, 9000)
    assert rows[0][8:] == (255, 255, 65535, 100, 0)


@pytest.mark.parametrize("status", [404, 429, 500, 502, 503])
def test_while_the_service_is_away_minutes_wait_and_then_come_in_order(
    tmp_path: Path, service: Service, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    service.status = status
    job = Job(tmp_path, service.url)
    job.run(1800)
    assert service.bodies == []
    service.status = 204
    job.run(600)
    found = [each["at"] for each in service.minutes]
    assert found == [START + 60 * number for number in range(len(found))]
    assert len(found) >= 39
    assert capsys.readouterr().out.count("usage cannot be sent now") == 1, "the log says it once"


def test_a_failure_makes_the_next_tries_rarer(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []
    job = Job(tmp_path, service.url)

    def fail(*_words: Any) -> None:
        tries.append(job.now)
        raise OSError("away")

    monkeypatch.setattr(minutes, "send", fail)
    job.run(3600)
    gaps = [round((after - before) / 60) for before, after in itertools.pairwise(tries)]
    assert gaps[:4] == [1, 2, 3, 5]
    assert set(gaps[4:]) == {5}


def test_what_the_service_refuses_is_given_up_and_the_log_says_so(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.status = 422
    job = Job(tmp_path, service.url)
    job.run(180)
    assert not job.reporter.waiting[1:]
    service.status = 204
    job.run(120)
    assert service.minutes
    assert service.minutes[0]["at"] >= START + 60
    assert "the service refused 1 minutes of usage: 422" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["<html>'_xsrf' argument missing</html>", '{"status": 403, "message": "No."}', ""])
def test_a_hub_that_answers_in_place_of_the_service_loses_no_minute(
    tmp_path: Path, service: Service, text: str
) -> None:
    service.status, service.text = 403, text
    job = Job(tmp_path, service.url)
    job.run(300)
    service.status = 204
    job.run(600)
    assert [each["at"] for each in service.minutes][:3] == [START, START + 60, START + 120]


def test_reporters_come_at_moments_of_their_own(tmp_path: Path, service: Service) -> None:
    moments = set()
    for number in range(12):
        before = len(service.bodies)
        job = Job(tmp_path / str(number), service.url)
        while len(service.bodies) == before:
            job.run(10)
        moments.add(service.bodies[-1]["now"] % 60)
    assert len(moments) >= 3


def test_the_last_minute_is_sent_at_the_end(tmp_path: Path, service: Service) -> None:
    job = Job(tmp_path, service.url)
    job.run(30)
    job.reporter.finish()
    assert service.minutes == [
        {"at": START, "seconds": 30, "cpu": 100.0, "memory": 500, "read": 30, "written": 60, "gpus": []}
    ]
    assert not (tmp_path / report.UNSENT).exists()


def test_what_a_session_could_not_send_is_sent_by_the_users_next_one(tmp_path: Path, service: Service) -> None:
    service.status = 503
    first = Job(tmp_path / "one", service.url)
    first.run(5400)
    first.reporter.finish()
    kept = tmp_path / "one" / report.UNSENT
    assert kept.stat().st_mode & 0o777 == 0o600
    service.status = 204
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / report.UNSENT).write_text("{")
    second = Job(tmp_path / "two", service.url.replace("/one/", "/two/"), session="two")
    second.run(240)
    received = zip(service.paths, service.bodies, strict=True)
    own = [body for path, body in received if "/sessions/one/" in path]
    assert {body["session"] for body in own} == {"one"}
    assert [each["at"] for body in own for each in body["minutes"]] == [START + 60 * number for number in range(90)]
    assert not kept.exists()


def test_a_day_of_a_large_node_that_could_not_be_sent_is_sent_too(tmp_path: Path, service: Service) -> None:
    service.status = 503
    first = Job(tmp_path / "one", service.url, *[ForgedDevice(utilisation=50, memory=1 << 34) for _ in range(16)])
    first.run(60)
    first.reporter.finish()  # with the minute that is not over
    [minute] = first.reporter.waiting
    first.reporter.waiting = [{**minute, "at": START + 60 * each} for each in range(report.MOST_WAITING)]
    first.reporter.finish()
    sizes = [each.stat().st_size for each in (tmp_path / "one").glob("usage-unsent*.json")]
    assert len(sizes) > 1
    assert max(sizes) < report.LARGEST_LEFTOVER
    service.status = 204
    Job(tmp_path / "two", service.url.replace("/one/", "/two/"), session="two").run(240)
    sent = [each["at"] for body in service.bodies if body["session"] == "one" for each in body["minutes"]]
    assert sorted(sent) == [START + 60 * each for each in range(report.MOST_WAITING)]
    assert not list((tmp_path / "one").glob("usage-unsent*.json"))


def test_the_ring_keeps_a_day_in_one_mib_and_then_replaces_the_oldest(tmp_path: Path, service: Service) -> None:
    job = Job(tmp_path, service.url, *[ForgedDevice(utilisation=1) for _ in range(8)])
    capacity = job.reporter._ring.capacity
    assert capacity == 8640
    ring = job.reporter._ring
    for number in range(capacity + 5):
        ring.append({"at": START + 10 * number, "gpus": [ForgedDevice().sample() | {"new_ecc": None}] * 8})
    head, rows = read_ring(tmp_path / report.RING)
    assert (tmp_path / report.RING).stat().st_size <= 1 << 20
    assert (len(rows), head["capacity"]) == (capacity, capacity)
    assert min(row[0] for row in rows) == START + 50
    assert head["gpus"][0]["uuid"] == "GPU-aaaa"


def test_a_job_that_starts_again_begins_its_ring_anew(tmp_path: Path, service: Service) -> None:
    Job(tmp_path, service.url, ForgedDevice()).run(300)
    Job(tmp_path, service.url).run(20)
    head, rows = read_ring(tmp_path / report.RING)
    assert (len(head["gpus"]), len(rows)) == (0, 2)


def test_a_full_disk_stops_no_report(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_words: Any) -> None:
        raise OSError(28, "No space left on device")

    job = Job(tmp_path, service.url)
    monkeypatch.setattr(job.reporter._ring, "append", full)
    job.run(180)
    assert service.minutes
    assert capsys.readouterr().out.count("usage is not kept in the session folder: No space left") == 1


def test_a_clock_that_jumps_makes_no_minute_twice(tmp_path: Path, service: Service) -> None:
    job = Job(tmp_path, service.url)
    job.run(120)
    job.now += 3600
    job.run(180)
    found = [each["at"] for each in service.minutes]
    assert len(found) == len(set(found))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session folder as the batch script writes it."""
    found = tmp_path / "session"
    found.mkdir()
    for name in ("report", "usage", "memory", "nvml", "minutes"):
        shutil.copy(PROGRAMS / f"{name}.py", found / f"carme-{name}")
    return found


def begin(folder: Path, url: str, forged: ForgedNVML, *, job: str, **part: Any) -> subprocess.Popen[str]:
    """Start the program as the supervisor does."""
    activity = {"url": url, "token": "secret", "interval": 0.2, **part}
    (folder / "data.json").write_text(json.dumps({"session": f"one-{job}", "activity": activity}))
    argv = ["/usr/bin/python3", "-IS", str(folder / "carme-report"), str(folder)]
    environ = {**forged.environ, "SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "0"}
    environ["SLURM_JOB_GPUS"] = "1"
    return subprocess.Popen(argv, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_as_a_program_it_reads_the_jobs_gpu_and_ends_at_term(folder: Path, service: Service, tmp_path: Path) -> None:
    forged = ForgedNVML(tmp_path)
    gpu = "{0} uuid GPU-{0}\n{0} minor {0}\n{0} utilisation 5{0}\n{0} used 1000\n{0} total 2000\n{0} process {1} 900\n"
    forged.set(gpu.format(0, os.getpid()) + gpu.format(1, os.getpid()))
    process = begin(folder, service.url, forged, job=f"report-{os.getpid()}")
    deadline = time.monotonic() + 20
    while not (folder / report.NOW).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    now = json.loads((folder / report.NOW).read_text())
    [found] = now["gpus"]
    assert (found["uuid"], found["utilisation"], found["memory"], found["memory_total"]) == ("GPU-1", 51, 1000, 2000)
    assert found["processes"] == [{"pid": os.getpid(), "inside": report.inner_pid(os.getpid()), "memory": 900}]
    assert (now["node"], now["session"]) == ("n1", f"one-report-{os.getpid()}")
    assert now["memory"] > 0, "at least its own"
    for name in (report.NOW, report.RING):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=5)
    assert (process.returncode, out) == (0, "")
    assert service.minutes
    assert service.minutes[0]["gpus"][0]["utilisation"] == 51


def test_as_a_program_without_driver_and_service_it_still_keeps_the_curve(
    folder: Path, tmp_path: Path, service: Service
) -> None:
    forged = ForgedNVML(tmp_path)
    service.close()
    process = begin(folder, service.url, forged, job=f"report-{os.getpid()}", nvml="/nowhere/libnvidia-ml.so.1")
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 0, out
    assert "usage cannot be sent now, and is sent later" in out
    _, rows = read_ring(folder / report.RING)
    assert len(rows) >= 2
    kept = json.loads((folder / report.UNSENT).read_text())
    assert (kept["body"]["minutes"][0]["gpus"], kept["address"]["token"]) == ([], "secret")
