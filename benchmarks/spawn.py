"""From the click to a lab that answers, on idle virtual nodes: ours, batchspawner's, and Slurm's own lower bound.

Runs as ``python benchmarks/spawn.py [--rounds 20] [--keep]``; prints one JSON object a line. In every round each of the
three is started and stopped once, in random order:

* ours: our hub as in ``make demo``: a container, internal TLS, slurmrestd with a token per user;
* the peer: a second hub with ``batchspawner.SlurmSpawner`` at its defaults: no container, no TLS; its server is
  the same JupyterLab, from the same files;
* bare: ``sbatch`` of the same container and server by hand, without our code.

"Our own share" is ours minus the median of bare, so Slurm's own jitter counts as ours.
"""

from __future__ import annotations

import argparse
import http.client
import json
import pwd
import random
import time
from pathlib import Path
from urllib.parse import urlsplit

from bare_sbatch import start_bare, stub_hub, wait_answer
from hubs import HubAddress, need_root, peer_environment, sandbox, start_our_hub, start_peer_hub, wait_idle
from measure import figure, load, log_progress, median, p95

from carme_hub.sandbox.images.build import build_default_image

USER = "alice"
PROFILE = {"profile": "cpu"}
PEER_LOGS = "jupyterhub_slurmspawner_*.log"
CPUS, MEMORY, MINUTES = 2, "2G", 120  # that profile's defaults


def ask(hub: HubAddress, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Ask a hub's API through its proxy."""
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=120)
    try:
        headers = {"Authorization": f"token {hub.token}"}
        connection.request(method, f"/hub/api{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def click(hub: HubAddress, options: dict[str, str]) -> float:
    """Start a server and return the seconds until it answers through the proxy; then stop it."""
    began = time.perf_counter()
    status, said = ask(hub, "POST", f"/users/{USER}/server", options and {"user_options": options})
    if status not in (201, 202):  # 202: the start takes longer than the hub's limit for one request
        raise SystemExit(f"{hub.name}: the start was answered {status}: {said}\n{hub.log.read_text()[-3000:]}")
    wait_answer(f"{hub.url}/user/{USER}/api", 90.0)
    took = time.perf_counter() - began
    while ask(hub, "DELETE", f"/users/{USER}/server")[0] == 202:
        time.sleep(0.2)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20, help="starts of each kind that count; two more warm up")
    parser.add_argument("--keep", action="store_true", help="leave the state folder for the next run")
    args = parser.parse_args()
    need_root()
    times: dict[str, list[float]] = {"ours": [], "batchspawner": [], "bare": []}
    with sandbox("spawn", 4, keep=args.keep) as where, stub_hub() as api:
        ours = start_our_hub(where)
        cluster = where.facts()
        image = build_default_image(progress=log_progress)
        venv = peer_environment(where, image)
        settings = {
            "SlurmSpawner": {"req_partition": "interactive", "req_nprocs": str(CPUS), "req_memory": MEMORY}
            | {"req_runtime": str(MINUTES)},
        }
        wrapper = f"{venv}/bin/python3 {venv}/bin/batchspawner-singleuser"
        peer = start_peer_hub(where, venv, settings, wrapper=wrapper, server=[f"{venv}/bin/jupyterhub-singleuser"])
        for hub in (ours, peer):
            ask(hub, "POST", f"/users/{USER}")
        user = pwd.getpwnam(USER)
        options = ["-p", "interactive", "-c", str(CPUS), f"--mem={MEMORY}", "-t", str(MINUTES), "--no-requeue"]
        kinds = {
            "ours": lambda: click(ours, PROFILE),
            "batchspawner": lambda: click(peer, {}),
            "bare": lambda: start_bare(cluster, USER, user.pw_dir, user.pw_uid, user.pw_gid, api, options),
        }
        before = load()
        logs = set(Path(user.pw_dir).glob(PEER_LOGS))
        for number in range(-2, args.rounds):
            order = list(kinds)
            random.shuffle(order)
            for kind in order:
                time.sleep(0.5 + random.random())  # at a random moment of the scheduler's cycle of one second
                took = kinds[kind]()
                wait_idle(cluster)
                if number >= 0:
                    times[kind].append(took)
                log_progress(f"round {number}: {kind} {took:.2f} s, load {load()}")
        for log in set(Path(user.pw_dir).glob(PEER_LOGS)) - logs:
            log.unlink()
        report(times, f"{before} to {load()}")


def report(times: dict[str, list[float]], load_seen: str) -> None:
    """Print the figures."""
    ours, peer, bare = times["ours"], times["batchspawner"], times["bare"]
    more = {"n": len(ours), "load": load_seen}
    floor = median(bare) or 0.0
    share = [took - floor for took in ours]
    figure("spawn_total_median", median(ours), "s", peer=median(peer), goal=1.2, **more)
    figure("spawn_total_p95", p95(ours), "s", peer=p95(peer), goal=p95(peer), **more)
    figure("spawn_bare_sbatch_median", floor, "s", **more)
    figure("spawn_bare_sbatch_p95", p95(bare), "s", **more)
    figure("spawn_own_share_median", median(share), "s", goal=0.2, peer=(median(peer) or 0) - floor, **more)
    figure("spawn_own_share_p95", p95(share), "s", goal=0.5, peer=(p95(peer) or 0) - floor, **more)


if __name__ == "__main__":
    main()
