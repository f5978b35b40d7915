"""What is read of a GPU, and training on it, against nvidia-smi and torchrun, on one NVIDIA GPU without Slurm.

Runs as ``python benchmarks/gpu.py [--rounds 5] [--seconds 6] [--steps 60] [--batch 256]``; prints one JSON object a
line. Needs torch with CUDA, torchvision, nvidia-ml-py and pytest; takes about six minutes. Where one of these or a GPU
is missing it says so, measures nothing and exits with status 3. ``--only reading`` needs no torchvision and no pytest.

* Reading: under a load that computes for 0, 50 and 100 % of the time, the driver is asked in turn through
  ``carme_hub.node.nvml``, with which reporters and ranks read it, and by nvidia-smi; and what one question costs, also
  by ``carme_hub.gpu``, which asks by NVIDIA's own binding.
* Training: ResNet-50 on synthetic images with DDP over NCCL, in FP32 (TF32) and with bf16 autocast, one rank. In each
  round it runs through a conductor of ``carme_hub.training``, as ``%%distributed`` starts it, and by ``torchrun``, in
  random order. There is no Slurm: the conductor starts its rank as a process of this machine. So the launch says what
  the run's own parts cost, without srun and a container.
* Profile: the time of steps with and without ``--profile``, and what it says.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import figure, log_progress, median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit/training")]

from carme_hub.node.nvml import Device, Driver  # noqa: E402
from carme_hub.training.launch.new_run import create  # noqa: E402
from carme_hub.training.run.run_folder import Run  # noqa: E402
from carme_hub.training.run.run_options import RunOptions  # noqa: E402

#: Computes for a share of each tenth of a second, until it is ended.
LOAD = """
import sys, time, torch
share = float(sys.argv[1])
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    end = time.monotonic() + 0.1 * share
    while time.monotonic() < end:
        a @ a
        torch.cuda.synchronize()
    time.sleep(0.1 * (1 - share))
"""
#: The training of both; it writes what it measured to the file of its first argument.
TRAINING = """
import json, os, sys, time
import torch, torchvision
import torch.distributed as dist
target, steps, batch, report = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "report"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = True
dist.init_process_group("nccl", device_id=device)
net = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
model = torch.nn.parallel.DistributedDataParallel(net, device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
images = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
labels = torch.randint(1000, (batch,), device=device)
first, done, found = 0.0, 0, {"backend": dist.get_backend()}
if report:
    from carme_hub.training import here

def step(bf16):
    global first, done
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    done += 1
    if report:
        torch.cuda.synchronize()
        here.step(done, samples=batch)
    if not first:
        torch.cuda.synchronize()
        first = time.time()

def rate(bf16):
    begin = time.perf_counter()
    for _ in range(steps):
        step(bf16)
    torch.cuda.synchronize()
    return steps * batch / (time.perf_counter() - begin)

def times(bf16):
    taken = []
    for _ in range(steps):
        begin = time.perf_counter()
        step(bf16)
        taken.append(time.perf_counter() - begin)
    return taken

for name, bf16 in (("fp32", False), ("bf16", True)):
    for _ in range(15):
        step(bf16)
    torch.cuda.synchronize()
    found[name] = times(bf16) if report else rate(bf16)
found["first step"] = first
found["memory"] = torch.cuda.max_memory_allocated() >> 20
with open(target, "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""
#: A query of nvidia-smi, with the name of the same value in a sample.
QUERIES = {"utilization.gpu": "utilisation", "memory.used": "memory", "power.draw": "power"}
#: Exit status where something is missing.
MISSING = 3


def missing(*modules: str) -> list[str]:
    """Return what this machine lacks, with what to do, without loading CUDA where there is no GPU."""
    found = []
    try:
        if not Driver().devices():
            found.append("NVIDIA's driver knows no GPU of this machine.")
    except OSError as error:
        found.append(f"There is no NVIDIA driver here: {error}.")
    if shutil.which("nvidia-smi") is None:
        found.append("There is no nvidia-smi on the PATH; it comes with NVIDIA's driver.")
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        packages = " ".join({"pynvml": "nvidia-ml-py"}.get(name, name) for name in absent)
        found.append(f"This Python lacks {', '.join(absent)}: pip install {packages}")
    if not found:
        import torch

        if not torch.cuda.is_available():
            found.append("This torch has no CUDA, or cannot use the GPU: torch.cuda.is_available() is False.")
    return found


def main() -> int:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--only", choices=("reading", "training"), help="the default is both")
    options = parser.parse_args()
    needed = ("torch", "pynvml") if options.only == "reading" else ("torch", "pynvml", "torchvision", "pytest")
    if lacks := missing(*needed):
        print("\n".join(["benchmarks/gpu.py measures nothing here:", *lacks]), file=sys.stderr)
        return MISSING
    [device, *_] = Driver().devices()
    log_progress(f"{device.name}")
    with tempfile.TemporaryDirectory(prefix="carme-gpu-") as folder:
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        os.environ |= {"HOME": folder, "PYTHONPATH": paths}
        os.chdir(folder)
        if options.only != "training":
            measure_cost(device)
            for share in (0.0, 0.5, 1.0):
                measure_load(device, share, options.seconds)
        if options.only != "reading":
            script = Path(folder, "training.py")
            script.write_text(TRAINING)
            measure_training(script, options.rounds, options.steps, options.batch, str(device.name))
            measure_profile(script, options.steps, options.batch, str(device.name))
    return 0


# -- reading ----------------------------------------------------------------------------------------------------------


def measure_cost(device: Device) -> None:
    """Print what a question costs; of the driver's own counters some take milliseconds."""
    from carme_hub.gpu.nvml import all_devices

    [by_binding, *_] = all_devices()
    for name, ask in (
        ("sample", device.sample),
        ("utilisation and memory", lambda: (device.utilisation(), device.memory())),
        ("sample by carme_hub.gpu", by_binding.sample),
    ):
        taken, spent = [], []
        for _ in range(50):
            begin, cpu = time.perf_counter(), time.process_time()
            ask()
            taken.append(1000 * (time.perf_counter() - begin))
            spent.append(1000 * (time.process_time() - cpu))
            time.sleep(0.05)
        smi = []
        for _ in range(3):
            begin = time.perf_counter()
            ask_nvidia_smi()
            smi.append(1000 * (time.perf_counter() - begin))
        figure(f"one {name}", median(taken), "ms", peer=median(smi), peer_is="nvidia-smi", processor=median(spent))


def measure_load(device: Device, share: float, seconds: float) -> None:
    """Print what both say while a process computes for a share of the time."""
    ours: dict[str, list[float]] = {name: [] for name in QUERIES.values()}
    theirs: dict[str, list[float]] = {name: [] for name in QUERIES.values()}
    with subprocess.Popen([sys.executable, "-c", LOAD, str(share)], stdout=subprocess.PIPE, text=True) as load:
        try:
            assert load.stdout is not None
            assert load.stdout.readline() == "ready\n"
            time.sleep(2)  # what the driver reports is an average of about a second
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sample = device.sample()
                said = ask_nvidia_smi()
                for name in QUERIES.values():
                    if sample[name] is not None and name in said:
                        ours[name].append(float(sample[name]))
                        theirs[name].append(said[name])
                time.sleep(0.2)
            found = device.sample()["processes"]
        finally:
            load.kill()
    load_name = f"load of {share:.0%}"
    for name, unit in (("utilisation", "%"), ("memory", "MiB"), ("power", "W")):
        values, peers = ours[name], theirs[name]
        figure(
            f"{name}, {load_name}",
            statistics.fmean(values) if values else None,  # a MIG device says neither utilisation nor power
            unit,
            peer=statistics.fmean(peers) if peers else None,
            peer_is="nvidia-smi",
            readings=len(values),
            largest_difference=max((abs(a - b) for a, b in zip(values, peers, strict=True)), default=None),
        )
    count = None if found is None else len(found)
    figure(f"processes on the GPU, {load_name}", count, "", peer=1, peer_is="started")


def ask_nvidia_smi() -> dict[str, float]:
    """Return what nvidia-smi says of the first GPU, without what it does not know."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(QUERIES)}", "--format=csv,noheader,nounits", "--id=0"]
    line = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    said = zip(QUERIES.values(), line.split(","), strict=True)
    return {name: float(text) for name, text in said if "N/A" not in text and "[" not in text}


# -- training ---------------------------------------------------------------------------------------------------------


def measure_training(script: Path, rounds: int, steps: int, batch: int, gpu: str) -> None:
    """Print launch and throughput of both."""
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "torchrun": []}
    for number in range(rounds):
        for who in random.sample(sorted(found), 2):
            log_progress(f"round {number + 1} of {rounds}: {who}")
            found[who].append(run(who, script, steps, batch))
    for name, words in (("launch", "begin to first step"), ("fp32", "ResNet-50, FP32"), ("bf16", "ResNet-50, bf16")):
        ours, theirs = ([each[name] for each in found[who]] for who in ("ours", "torchrun"))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        unit = "s" if name == "launch" else "images/s"
        middle = median(ratios) or 0.0
        more = {"ratio": round(middle, 3), "ratios": [round(min(ratios), 3), round(max(ratios), 3)], "gpu": gpu}
        figure(words, median(ours), unit, peer=median(theirs), peer_is="torchrun", rounds=rounds, **more)


def run(who: str, script: Path, steps: int, batch: int) -> dict[str, Any]:
    """Run the training once, and return what it measured."""
    target = script.with_name("found.json")
    target.unlink(missing_ok=True)
    words = [str(target), str(steps), str(batch), "quiet"]
    begin = time.time()
    if who == "ours":
        train(RunOptions(1), script, words)
    else:
        argv = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=1",
            str(script),
            *words,
        ]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(target.read_text())
    return {**found, "launch": found["first step"] - begin}


def train(options: RunOptions, script: Path, words: list[str]) -> Run:
    """Conduct a run of one rank on one GPU to its end."""
    from conducted_here import end_of  # here: it needs pytest

    run = create(options, script=str(script), args=words)
    state = end_of(run, nodes=1, gpus=1)
    assert state["state"] == "finished", (state["message"], run.log())
    return run


def measure_profile(script: Path, steps: int, batch: int, gpu: str) -> None:
    """Print what a profile costs, of the steps that it looks at and of the others."""
    times: dict[str, dict[str, list[float]]] = {}
    for name, profile in (("without", None), ("with", (20, 29))):
        target = script.with_name(f"{name}.json")
        run = train(RunOptions(1, profile=profile), script, [str(target), str(steps), str(batch), "report"])
        times[name] = json.loads(target.read_text())
    # Steps are counted from 1 and 15 are not timed, so those from 20 to 29 are the entries from 4 to 13.
    for words, of in (
        ("a step while it is profiled", slice(4, 14)),
        ("a step of a profiled run, later", slice(20, None)),
    ):
        values, others = (times[name]["fp32"][of] for name in ("with", "without"))
        ms = [1000 * (median(each) or 0.0) for each in (values, others)]
        figure(words, ms[0], "ms", peer=ms[1], peer_is="the same without --profile", gpu=gpu)
    said = json.loads((run.folder / "profile/rank-0.json").read_text())
    size = (run.folder / "profile/rank-0.json.gz").stat().st_size / (1 << 20)
    figure("the profile of ten steps", size, "MiB", **said)
    [rank] = run.state()["ranks"]
    figure(
        "most GPU memory, as the run says",
        rank["gpu_memory_most"],
        "MiB",
        peer=times["with"]["memory"],
        peer_is="torch",
    )


if __name__ == "__main__":
    sys.exit(main())
