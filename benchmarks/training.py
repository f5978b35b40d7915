"""Training through ``%%distributed`` against a bare ``srun`` of the same script, Horovod and DDP in the same run.

Runs as ``python benchmarks/training.py [--rounds 10] [--pairs 5] [--ranks 4] [--steps 40] [--keep]``; prints one JSON
object a line. All runs use the CPUs of this machine, whatever its virtual nodes have, and are labelled so. In every
round the script runs four times, in random order: through ``%%distributed`` and by ``srun`` by hand in the same job and
container, each with either library first.

* Launch: from the cell, or from srun's start, until rank 0 has done its first step with the library that comes first.
* Throughput: samples a second of each library, in alternating blocks of steps within one run, so that both have the
  same conditions; ours against the bare one by the median of the ratios of each round's pairs.
* Throughput side by side: ours and the bare one run at the same time and alternate their blocks, while the other
  waits. Other work of the machine then affects both alike. Our processes besides the ranks (conductor, notebook)
  continue while the bare one works: the first method counts them, and scatters much more.
* Processor time of a step, which scatters less where ranks share processors with each other and with other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import random
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hubs import free_ports, need_root, sandbox
from measure import figure, load, log_progress, median, p95

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the hub and the notebook of the tests

from rig.hub import Hub  # noqa: E402
from rig.training import Lab  # noqa: E402

from carme_hub.containers.bubblewrap import Bubblewrap  # noqa: E402
from carme_hub.containers.images import read_image  # noqa: E402
from carme_hub.containers.runtime import ContainerRequest  # noqa: E402
from carme_hub.sandbox import Cluster  # noqa: E402
from carme_hub.sandbox.demo import Demo  # noqa: E402
from carme_hub.sandbox.images.build import build_training_image  # noqa: E402
from carme_hub.spawners.job_script import PATH  # noqa: E402
from carme_hub.training.run.rendezvous import Rendezvous  # noqa: E402

USER = "alice"
KINDS = ("ddp", "horovod")
#: The script of both, after a line with ``first``, ``steps``, ``blocks``, ``target``, ``who`` and ``turns``. Rank 0
#: writes the time of its first step, and the samples a second of each block. ``turns``: the folder through which two
#: runs at the same time alternate, "" for a single run.
SCRIPT = """
import json, os, sys, time
stages = {"code": time.time()}
for name, slurm in (("RANK", "PROCID"), ("WORLD_SIZE", "NTASKS"), ("LOCAL_RANK", "LOCALID")):
    os.environ.setdefault(name, os.environ.get("SLURM_" + slurm, ""))
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ and name != "WORLD_SIZE":
        os.environ.setdefault("HOROVOD_" + name, os.environ[name])
for name in ("SIZE", "LOCAL_SIZE"):
    os.environ.setdefault("HOROVOD_" + name, os.environ["WORLD_SIZE"])
os.environ.setdefault("HOROVOD_CROSS_RANK", "0")
os.environ.setdefault("HOROVOD_CROSS_SIZE", "1")
import torch
stages["torch"] = time.time()
torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = torch.randn(512, 1, 8, 8), torch.randint(10, (512,))

def net():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(2048, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

def ddp():
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(net())
    return model, torch.optim.SGD(model.parameters(), 0.01)

def horovod():
    import horovod.torch as hvd
    hvd.init()
    model = net()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

def step(model, optimizer, number):
    chosen = torch.arange(number * 32, number * 32 + 32) % 512
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
    return loss.item()

kinds = ["ddp", "horovod"] if first == "ddp" else ["horovod", "ddp"]
made = {kinds[0]: globals()[kinds[0]]()}
stages["joined"] = time.time()
step(*made[kinds[0]], 0)
stages["first step"] = time.time()
made[kinds[1]] = globals()[kinds[1]]()
for kind in kinds:
    for number in range(5):
        step(*made[kind], number)

def turn(number):
    wanted = [str(number)] if number else ["ours", "bare"]
    while not all(os.path.exists(os.path.join(turns, name)) for name in wanted):
        time.sleep(0.01)

def leave(name):
    open(os.path.join(turns, str(name)), "w").close()

first_rank = os.environ["RANK"] == "0"
if turns and first_rank:
    leave(who)
seconds = {kind: [] for kind in kinds}
spent = {kind: [] for kind in kinds}
for block in range(blocks):
    for number, kind in enumerate(kinds if block % 2 == 0 else kinds[::-1]):
        mine = 2 * (2 * block + number) + ((who == second) ^ (block % 2))
        if turns and first_rank:
            turn(mine)
        torch.distributed.barrier()
        start, worked = time.perf_counter(), time.process_time()
        for number in range(steps):
            step(*made[kind], number)
        if turns and first_rank:
            leave(mine + 1)
        seconds[kind].append(time.perf_counter() - start)
        spent[kind].append((time.process_time() - worked) / steps)
if first_rank:
    rates = {kind: [32 * steps * int(os.environ["WORLD_SIZE"]) / each for each in seconds[kind]] for kind in kinds}
    with open(target + ".part", "w") as file:
        json.dump({"stages": stages, "rates": rates, "spent": spent}, file)
    os.replace(target + ".part", target)
torch.distributed.barrier()
"""


class Bare:
    """``srun`` by hand, in the job of the session: the same container, without our code."""

    def __init__(self, cluster: Cluster, image: Path, job: str, ranks: int) -> None:
        self._cluster, self._image, self._job, self._ranks = cluster, image, job, ranks
        self._who = pwd.getpwnam(USER)

    def run(self, script: Path, text: str) -> float:
        """Run a script to its end, and return when it was started (epoch seconds)."""
        script.write_text(text)
        [port] = free_ports(1)
        with Rendezvous("127.0.0.1") as rendezvous:
            environ = {
                **{"HOME": self._who.pw_dir, "USER": USER, "LOGNAME": USER, "PATH": PATH, "LANG": "C.UTF-8"},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"},
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous.address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous.port),
                **{"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo"},
                "HOROVOD_HOSTNAME": "here",
            }
            options = [f"--jobid={self._job}", f"--ntasks={self._ranks}", "--nodes=1", "--overlap", "--overcommit"]
            options += [
                "--mem=0",
                "--cpu-bind=none",
                "--gres=none",
                "--mpi=none",
                "--input=none",
                "--kill-on-bad-exit=1",
            ]
            words = [f"{name}={value}" for name, value in environ.items()]
            began = time.time()
            # Linux divides processor time by sessions of processes (sched(7), autogroup), and each of our ranks is one.
            # Each of these is one, too: else on a busy machine all of them together would get as much as one of ours.
            argv = ("/usr/bin/setsid", "--wait", "/usr/bin/env", *words, *self._container(script))
            done = self._cluster.run("srun", *options, *argv, user=USER, check=False, timeout=300)
        if done.returncode:
            raise SystemExit(
                f"The bare srun failed with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
            )
        return began

    def _container(self, script: Path) -> tuple[str, ...]:
        folder = f"{self._who.pw_dir}/.carme/bench"
        request = ContainerRequest(
            image=read_image(self._image),
            argv=("python", str(script)),
            home=self._who.pw_dir,
            session_folder=folder,
            user=USER,
            uid=self._who.pw_uid,
            gid=self._who.pw_gid,
            workdir=self._who.pw_dir,
        )
        self._cluster.run("/usr/bin/mkdir", "-p", folder, user=USER)
        return Bubblewrap().render(request).argv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10, help="rounds that count; one more warms up")
    parser.add_argument("--pairs", type=int, default=5, help="runs of both side by side; one more warms up")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40, help="steps of a block")
    parser.add_argument("--blocks", type=int, default=12, help="blocks of each library in a run")
    parser.add_argument("--keep", action="store_true", help="leave the state folder for the next run")
    args = parser.parse_args()
    need_root()
    with sandbox("training", 1, keep=args.keep) as where:
        hub = Hub(Demo.prepare(where, log_progress))
        hub.start()
        hub.ensure_user(USER)
        lab = Lab(hub, USER, gpus=1, cpus=2, memory_gib=8, time_minutes=120)
        try:
            before = load()
            bare = Bare(where.facts(), build_training_image(progress=log_progress), hub.jobs()[0]["id"], args.ranks)
            lab.check("%load_ext carme_hub.training")
            found = measured(lab, bare, args)
            pairs = side_by_side(lab, bare, args)
            report(found, pairs, args, f"{before} to {load()}")
        finally:
            lab.stop()
            hub.stop()


def measured(lab: Lab, bare: Bare, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the results of each run of each round, with its kind."""
    folder = Path(pwd.getpwnam(USER).pw_dir)
    target, script = folder / f"bench-{os.getpid()}.json", folder / f"bench-{os.getpid()}.py"
    found = []
    try:
        for number in range(-1, args.rounds):
            order = [(who, first) for who in ("ours", "bare") for first in KINDS]
            random.shuffle(order)
            for who, first in order:
                text = script_of(first, args, target, who)
                target.unlink(missing_ok=True)
                began = by_cell(lab, text, first, args.ranks) if who == "ours" else bare.run(script, text)
                said = json.loads(target.read_text())
                stages = ", ".join(f"{name} {at - began:.2f}" for name, at in said["stages"].items())
                rates = {kind: statistics.median(each) for kind, each in said["rates"].items()}
                log_progress(f"round {number}: {who}, {first} first: seconds to {stages}; {rates}, load {load()}")
                launch, code = (said["stages"][name] - began for name in ("first step", "code"))
                if number >= 0:
                    run = {"round": number, "who": who, "first": first, "launch": launch, "code": code}
                    spent = {f"{kind}_spent": statistics.median(each) for kind, each in said["spent"].items()}
                    found.append({**run, **rates, **spent})
    finally:
        for each in (target, script):
            each.unlink(missing_ok=True)
    return found


def side_by_side(lab: Lab, bare: Bare, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the ratio of ours to the bare one for each library and each run of both at once: the median of blocks."""
    folder = Path(pwd.getpwnam(USER).pw_dir)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(-1, args.pairs):
        first = KINDS[number % 2]
        turns = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
        try:
            os.chown(turns, *(pwd.getpwnam(USER)[2:4]))
            target = {who: turns / f"{who}.json" for who in ("ours", "bare")}
            second = ("bare", "ours")[number // 2 % 2]  # the first block is a cold one
            text = {who: script_of(first, args, path, who, turns, second) for who, path in target.items()}
            with ThreadPoolExecutor(2) as both:
                done = both.submit(bare.run, turns / "bare.py", text["bare"])
                by_cell(lab, text["ours"], first, args.ranks)
                done.result()
            rates = {who: json.loads(path.read_text())["rates"] for who, path in target.items()}
        finally:
            shutil.rmtree(turns)
        ratios = {
            kind: statistics.median(
                mine / other for mine, other in zip(rates["ours"][kind], rates["bare"][kind], strict=True)
            )
            for kind in KINDS
        }
        log_progress(f"pair {number}: {ratios}, load {load()}")
        if number >= 0:
            for kind, ratio in ratios.items():
                found[kind].append(ratio)
    return found


def script_of(
    first: str, args: argparse.Namespace, target: Path, who: str, turns: Path | str = "", second: str = "bare"
) -> str:
    """Return the script of one of the two."""
    values = (first, args.steps, args.blocks, str(target), who, str(turns), second)
    return f"first, steps, blocks, target, who, turns, second = {values!r}\n{SCRIPT}"


def by_cell(lab: Lab, text: str, first: str, ranks: int) -> float:
    """Run the script through ``%%distributed`` to its end, and return when the cell was sent (epoch seconds)."""
    backend = "torchrun" if first == "ddp" else "horovod"
    began = time.time()
    result = lab.run(f"%%distributed -n {ranks} --gpus-per-task 0 --backend {backend}\n{text}", timeout=300)
    if result.errors:
        raise SystemExit(f"The cell failed:\n{result.error}")
    return began


def report(
    found: list[dict[str, Any]], together: dict[str, list[float]], args: argparse.Namespace, load_seen: str
) -> None:
    """Print the figures."""
    more = {"n": args.rounds, "ranks": args.ranks, "device": "cpu", "load": load_seen}

    def of(who: str, first: str, what: str) -> list[float]:
        return [run[what] for run in found if (run["who"], run["first"]) == (who, first)]

    for first in KINDS:
        ours, bare = of("ours", first, "launch"), of("bare", first, "launch")
        share = [mine - theirs for mine, theirs in zip(ours, bare, strict=True)]
        figure(f"train_first_step_{first}_median", median(ours), "s", peer=median(bare), **more)
        figure(f"train_first_step_{first}_p95", p95(ours), "s", peer=p95(bare), **more)
        figure(f"train_launch_own_share_{first}", median(share), "s", goal=0.5, **more)
        begins = of("ours", first, "code"), of("bare", first, "code")
        figure(f"train_code_begins_{first}", median(begins[0]), "s", peer=median(begins[1]), **more)

    def pairs_of(what: str) -> list[float]:
        return [
            mine / theirs
            for first in KINDS
            for mine, theirs in zip(of("ours", first, what), of("bare", first, what), strict=True)
        ]

    for kind in KINDS:
        pairs = pairs_of(kind)
        rates = [run[kind] for run in found if run["who"] == "ours"]
        peers = [run[kind] for run in found if run["who"] == "bare"]
        figure(f"train_rate_{kind}", median(rates), "samples/s", peer=median(peers), **more)
        spread = {"lowest": min(pairs), "highest": max(pairs)}
        figure(f"train_rate_against_bare_{kind}", median(pairs), "1", goal=0.98, at_least=True, **spread, **more)
        spread = {"lowest": min(together[kind], default=None), "highest": max(together[kind], default=None)}
        side = {**more, **spread, "n": args.pairs}
        name = f"train_rate_side_by_side_{kind}"
        figure(name, median(together[kind]), "1", goal=0.98, at_least=True, **side)
        work = pairs_of(f"{kind}_spent")
        spread = {"lowest": min(work), "highest": max(work)}
        figure(f"train_processor_time_against_bare_{kind}", median(work), "1", goal=1.02, **spread, **more)
    ratio = [run["horovod"] / run["ddp"] for run in found]
    figure("train_horovod_against_ddp", median(ratio), "1", lowest=min(ratio), highest=max(ratio), **more)


if __name__ == "__main__":
    main()
