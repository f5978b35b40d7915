"""What setup says: what was found, what is left to the administrator, what the test sessions cost."""

from __future__ import annotations

from collections.abc import Sequence

from carme_hub.cli.base import table
from carme_hub.cli.doctor.images import PROGRAMS, install_line
from carme_hub.domain.cluster.tres import ANY_TYPE

from .answers import Answers
from .disk import Change, Disk
from .facts import Facts
from .trial import Result

_MOST_NAMES = 12


def found_text(facts: Facts) -> str:
    """Return what was found out, in a line each."""
    rows = [
        ("cluster", f"{facts.cluster} (Slurm {facts.release})" if facts.release else facts.cluster),
        *(("partition", _partition(facts, each.name)) for each in facts.partitions),
        ("accounts", _list(facts.accounts)),
        ("QOS", _list(facts.qos)),
        ("tokens", _tokens(facts)),
        ("sudo", facts.sudo or "not installed"),
        ("addresses", _list(facts.addresses)),
    ]
    return "\n".join(f"{name:10} {text}" for name, text in rows)


def left_to_do(facts: Facts, answers: Answers, absent: Sequence[str] = ()) -> str:
    """Return what setup does not do, because it is another program's, or another machine's, or takes rights in Slurm.

    Args:
        absent: folders of root's that answers name and that are not there.
    """
    lines = []
    for each in filter(None, map(facts.partition, answers.partitions)):
        if ANY_TYPE in each.gpus:
            lines.append(
                f"GPUs of {each.name}:  not offered where Slurm has no type of them: Gres=gpu:TYPE:N in slurm.conf, "
                "Type= in gres.conf"
            )
    if (facts.admin_level or "").lower() not in ("operator", "administrator"):
        lines.append(f"the hub in Slurm:  sacctmgr add user {answers.hub_user} account=root adminlevel=Operator")
    if "configurable-http-proxy" not in facts.programs:
        lines.append("the proxy:         install Node.js, then: npm install -g configurable-http-proxy")
    if answers.submit_via == "rest" and not facts.has_jwt_key:
        lines.append(
            f"tokens:            {facts.jwt_key} is not on this machine; carme-token signs with it (mode 0600)"
        )
    lines += _data_to_do(facts, answers, absent)
    name = {"nginx": "nginx.conf", "caddy": "Caddyfile"}.get(answers.web_server)
    text = (
        f"{answers.config_folder}/{name} says how"
        if name
        else f"forward https://{answers.host} to 127.0.0.1:{answers.public_port}"
    )
    lines.append(f"the web server:    {text}")
    lines.append(f"Prometheus:        {answers.config_folder}/prometheus.yml says how")
    lines.append(
        f"your own settings: {answers.config_folder}/site.py; secrets as NAME=value: {answers.config_folder}/secrets"
    )
    return "\n".join(["Left to you:", *(f"  {line}" for line in lines)])


def _data_to_do(facts: Facts, answers: Answers, absent: Sequence[str]) -> list[str]:
    """Return what is left for images, shared folders and data on nodes."""
    lines = [f"a folder of root's: install -d -o root -g root -m 755 {each}" for each in absent]
    if answers.image_store and (lacks := [name for name in PROGRAMS if name not in facts.programs]):
        lines.append(f"to add images:     {install_line(lacks)}")
    if answers.node_images:
        lines.append(
            "images on nodes:   carme-hub nodes install-images there, Slurm's Prolog, and a token: "
            "docs/howto/offer-images.md"
        )
    if answers.scratch:
        lines.append(
            "data on nodes:     carme-hub staging install, rclone and fuse3 there, Slurm's Prolog and Epilog: "
            "docs/howto/stage-data.md"
        )
    return lines


def links_text(disk: Disk, gone: Sequence[Change]) -> str:
    """Return a line for each link of the web server that leads to a file that goes: without it nginx does not start."""
    lines = [
        f"yours  {link} leads to {each.path}, which goes: rm {link} && systemctl reload nginx\n"
        for each in gone
        for link in disk.links_to(each.path)
    ]
    lines += [
        f"yours  /etc/caddy/Caddyfile may import {each.path}, which goes: take that line out, and reload caddy\n"
        for each in gone
        if each.path.endswith("/Caddyfile")
    ]
    return "".join(lines)


def sessions_table(results: Sequence[Result]) -> str:
    """Return what each test session cost."""
    return table(("partition", "ready after s", "gone after s", ""), [each.row for each in results])


def _partition(facts: Facts, name: str) -> str:
    each = facts.partition(name)
    if each is None:
        return name
    kinds = {kind if kind != ANY_TYPE else "GPU without a type": count for kind, count in each.gpus.items()}
    gpus = ", ".join(f"{count} × {kind}" for kind, count in kinds.items()) or "no GPU"
    limit = f"{each.max_minutes} min" if each.max_minutes else "no time limit"
    found = facts.runtimes.get(name)
    more = f"; {', '.join(sorted(found)) or 'no container runtime'}" if found is not None else ""
    special = "; not for everybody" if each.reserved else ""
    size = f"{each.nodes} nodes, up to {each.cpus} CPUs, {each.memory_mib // 1024} GiB, {gpus}"
    return f"{name}: {size}; {limit}{special}{more}"


def _tokens(facts: Facts) -> str:
    if not facts.jwt_key:
        return "none (AuthAltTypes is without auth/jwt)"
    return f"signed with {facts.jwt_key}" + ("" if facts.has_jwt_key else ", which is not on this machine")


def _list(names: Sequence[str] | None) -> str:
    if names is None:
        return "not known: Slurm's accounting does not answer"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more or "none found"
