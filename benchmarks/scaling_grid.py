"""The published grid, 1 to 10 ranks by batches of 32, 64 and 96, on the CPUs of this machine and labelled so.

Runs as ``python benchmarks/scaling_grid.py [--ranks 1-10] [--batch 32,64,96] [--repeats 3] [--keep]``: starts a
sandbox and a session, measures the template *Scaling curve* there by ``carme-hub scaling run``, and prints one JSON
object a line: the samples a second of each point with its efficiency and its share of communication, then the advice.
The grid is SLICES' (Horovod from JupyterLab, 1 to 10 nodes); its own figures are for GPUs, so there is no peer to
compare with. All ranks share this machine's processors: more ranks than processors cannot be faster.
"""

from __future__ import annotations

import argparse
import csv
import json
from typing import Any

from hubs import need_root, sandbox
from measure import figure, load, log_progress
from training import USER, Demo, Hub, Lab, build_training_image

FOLDER = "bench-grid"
#: Copies the template into a separate folder, which also receives the curve.
BEGIN = f"""
import os, pathlib, shutil
from carme_hub.training import templates
folder = pathlib.Path.home() / "{FOLDER}"
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir()
os.chdir(folder)
print(templates.copy("scaling", folder, script=True))
"""
END = f"import os, shutil; os.chdir('/'); shutil.rmtree(pathlib.Path.home() / '{FOLDER}')"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", default="1-10")
    parser.add_argument("--batch", default="32,64,96")
    parser.add_argument("--repeats", default="3")
    parser.add_argument("--steps", default="5", help="steps of a block")
    parser.add_argument("--blocks", default="3", help="blocks of each kind")
    parser.add_argument("--keep", action="store_true", help="leave the state folder for the next run")
    args = parser.parse_args()
    need_root()
    with sandbox("grid", 1, keep=args.keep) as where:
        build_training_image(progress=log_progress)
        hub = Hub(Demo.prepare(where, log_progress))
        hub.start()
        lab = Lab(hub, USER, gpus=1, cpus=2, memory_gib=12, time_minutes=120)
        try:
            before = load()
            lab.check(BEGIN)
            words = [f"--{name}={getattr(args, name)}" for name in ("ranks", "batch", "repeats", "steps", "blocks")]
            log_progress(f"carme-hub scaling run --gpus-per-task 0 {' '.join(words)} scaling.py")
            status, out = lab.command(
                *("carme-hub", "scaling", "run", "--gpus-per-task", "0", *words, "--name", FOLDER),
                *("-o", "grid.csv", "scaling.py"),
                timeout=3600,
            )
            log_progress(out)
            if status:
                raise SystemExit(f"carme-hub scaling run ended with {status}")
            report(lab, out, {"device": "cpu", "load": f"{before} to {load()}"})
        finally:
            lab.run(END)
            lab.stop()
            hub.stop()


def report(lab: Lab, out: str, more: dict[str, Any]) -> None:
    """Print a figure for each point, and the advice with its limits."""
    text = lab.check("print(open('grid.csv').read())")
    for row in csv.DictReader(text.strip().splitlines()):
        point = {name: int(row[name]) for name in ("batch", "ranks", "nodes", "repeats")}
        error = float(row["rate_error"]) if row["rate_error"] else None
        shares = {name: round(float(row[name]), 3) for name in ("efficiency", "communication", "quiet") if row[name]}
        figure("scaling_grid_rate", float(row["rate"]), "samples/s", error=error, **point, **shares, **more)
    said = out.rpartition("in the same run.")[2].partition("Kept in")[0].splitlines()
    print(json.dumps({"advice": [each for each in said if each], **more}), flush=True)


if __name__ == "__main__":
    main()
