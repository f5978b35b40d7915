"""A command has a time limit for its whole group, a bounded answer and nothing of the hub's environment."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm import command
from carme_hub.slurm.command import Commands
from carme_hub.slurm.process import can_start

WAYS = ("posix_spawn", "asyncio")


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How commands are started: what is said of them holds for each."""
    assert can_start()
    monkeypatch.setattr(command, "can_start", lambda: request.param == "posix_spawn")
    return str(request.param)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def _gone(pid: int) -> bool:
    for _ in range(1500):
        if not _alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_on_expiry_the_whole_group_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 60 & echo $! $$ > {pids}; trap '' TERM; wait"
    began = time.monotonic()
    with pytest.raises(SlurmUnreachable, match="no answer in 2 s"):
        await Commands(timeout=2).run(["/bin/sh", "-c", script])
    assert time.monotonic() - began < 30
    for pid in pids.read_text().split():
        assert await _gone(int(pid))


async def test_a_caller_that_gives_up_leaves_no_process_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    task = asyncio.create_task(Commands().run(["/bin/sh", "-c", f"echo $$ > {pids}; exec sleep 60"]))
    while not (pids.exists() and pids.read_text().strip()):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _gone(int(pids.read_text()))


async def test_a_child_that_holds_the_pipe_does_not_hold_us() -> None:
    began = time.monotonic()
    with pytest.raises(SlurmUnreachable):
        await Commands(timeout=0.3).run(["/bin/sh", "-c", "sleep 60 & exit 0"])
    assert time.monotonic() - began < 30


async def test_an_endless_answer_is_cut_off_before_its_time_is_over() -> None:
    with pytest.raises(SlurmUnreachable, match="longer than 100000 bytes"):
        await Commands(max_bytes=100_000, timeout=60).run(["/usr/bin/yes"])


async def test_the_environment_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFIGPROXY_AUTH_TOKEN", "secret")
    monkeypatch.setenv("SLURM_JWT", "secret")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/other.conf")
    answer = await Commands(prefix="/usr").query("env")
    names = {line.partition("=")[0] for line in answer.out.splitlines()}
    assert names - {"PWD", "_", "SHLVL"} == {"PATH", "LANG", "LC_ALL", "SLURM_CONF", "TZ", "SLURM_TIME_FORMAT"}
    assert "SLURM_CONF=/etc/slurm/other.conf" in answer.out


async def test_a_command_that_is_not_there_is_no_answer() -> None:
    with pytest.raises(SlurmUnreachable, match="cannot be started"):
        await Commands(prefix="/nowhere").query("squeue")


async def test_what_it_reads_need_not_be_read() -> None:
    answer = await Commands().run(["/bin/true"], stdin=b"x" * 5_000_000)
    assert answer.code == 0


async def test_exit_status_and_words_come_through() -> None:
    answer = await Commands().run(["/bin/sh", "-c", "cat; echo 'sq: error: no' >&2; exit 3"], stdin=b"in")
    assert (answer.code, answer.out, answer.message, answer.reports_error) == (3, "in", "sq: error: no", True)


async def test_the_loop_is_not_blocked_while_a_command_runs(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def let_it_end() -> None:
        while True:
            try:
                fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # it does not read yet
                await asyncio.sleep(0.01)
                continue
            os.write(fd, b"by the loop")
            os.close(fd)
            return

    task = asyncio.create_task(let_it_end())
    answer = await Commands(timeout=30).run(["/bin/cat", str(fifo)])  # ends by what the loop does, or never
    await task
    assert answer.out == "by the loop"


async def test_an_unknown_user_is_refused() -> None:
    with pytest.raises(SlurmRejected, match="no user"):
        await Commands().run(["/bin/true"], user="nobody-of-that-name")


async def test_no_descriptors_are_lost() -> None:
    commands = Commands(timeout=0.2)
    for _ in range(3):
        with pytest.raises(SlurmUnreachable):
            await commands.run(["/bin/sleep", "60"])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(SlurmUnreachable):
            await commands.run(["/bin/sleep", "60"])
        await commands.run(["/bin/true"], timeout=60)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


async def test_a_command_has_its_three_descriptors_and_no_other_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        answer = await Commands().run(["/bin/ls", "-l", "/proc/self/fd"])
    assert str(tmp_path) not in answer.out
    assert len([line for line in answer.out.splitlines() if "->" in line]) == 4  # and the folder that it reads


async def test_a_command_that_is_told_nothing_reads_nothing() -> None:
    assert (await Commands().run(["/bin/cat"])).code == 0
    assert (await Commands().run(["/bin/cat"], stdin=b"word")).out == "word"
    long = b"x" * 1_000_000
    assert (await Commands().run(["/bin/cat"], stdin=long)).out == long.decode()


async def test_a_command_leads_a_session_of_its_own_in_the_root_folder() -> None:
    answer = await Commands().run(["/bin/sh", "-c", "pwd; echo $$; cut -d' ' -f5,6 /proc/$$/stat"])
    folder, pid, group = answer.out.splitlines()
    assert (folder, group) == ("/", f"{pid} {pid}")


async def test_a_command_ends_by_the_signals_that_python_ignores() -> None:
    answer = await Commands().run(["/bin/sh", "-c", "kill -PIPE $$; echo still here"])
    assert (answer.code, answer.out) == (-13, "")


async def test_a_command_without_a_folder_is_sought_in_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "word").chmod(0o755)
    assert (await Commands().run(["word"], environ={"PATH": str(tmp_path)})).out == "found\n"
    with pytest.raises(SlurmUnreachable, match="cannot be started"):
        await Commands().run(["word"], environ={"PATH": "/nowhere"})


@pytest.mark.parametrize("argv", [["/bin/echo", "a\0b"], ["/etc/hostname"], ["/bin"]])
async def test_what_cannot_be_started_is_no_answer(argv: list[str]) -> None:
    with pytest.raises(SlurmUnreachable, match="cannot be started"):
        await Commands().run(argv)


async def test_many_commands_at_once() -> None:
    answers = await asyncio.gather(*(Commands().run(["/bin/echo", str(n)]) for n in range(40)))
    assert [answer.out for answer in answers] == [f"{n}\n" for n in range(40)]


async def test_who_gives_up_while_a_command_is_being_started_leaves_nothing_behind(tmp_path: Path) -> None:
    for _ in range(20):
        task = asyncio.create_task(Commands().run(["/bin/sleep", "61.25"]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def left() -> list[str]:
        found = [each for each in Path("/proc").iterdir() if each.name.isdigit()]
        return [each.name for each in found if _command(each) == b"/bin/sleep\x0061.25\x00" and _alive(int(each.name))]

    for _ in range(500):
        if not left():
            return
        await asyncio.sleep(0.02)
    assert not left()


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
