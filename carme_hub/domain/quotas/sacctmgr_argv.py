"""sacctmgr's commands for limits, as argv. ``-1`` removes a limit; a TRES that is not named does not change. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Entity(Enum):
    """What has limits in Slurm. A user's limits belong to the user's association with one account."""

    QOS = "qos"
    ACCOUNT = "account"
    USER = "user"


#: Entity and name.
Target = tuple[Entity, str]
#: QOS come first: accounts name them.
ORDER = (Entity.QOS, Entity.ACCOUNT, Entity.USER)
#: sacctmgr's names of limits on a QOS, if they differ from those on associations.
_ON_QOS = {"MaxTRES": "MaxTRESPerJob"}
#: How many users one command names.
_TOGETHER = 200


def single(target: Target, key: str, want: str, cluster: str) -> tuple[str, ...]:
    """Return the command that sets one limit; "" removes it."""
    return settings_of([(target, key, want)], cluster)[0]


def settings_of(changes: Sequence[tuple[Target, str, str]], cluster: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that set these limits, in an order that works."""
    by_target: dict[Target, list[tuple[str, str]]] = {}
    for target, key, want in changes:
        by_target.setdefault(target, []).append((key, want))
    found: list[tuple[str, ...]] = []
    users: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (entity, name), limits in sorted(by_target.items(), key=lambda one: (ORDER.index(one[0][0]), one[0][1])):
        settings = _settings(entity, [(key, want) for key, want in limits if key != "Name"])
        if entity is Entity.QOS:
            if ("Name", "yes") in limits:
                found.append(("sacctmgr", "-i", "add", "qos", name))
            if settings:
                found.append(("sacctmgr", "-i", "modify", "qos", "where", f"name={name}", "set", *settings))
        elif entity is Entity.ACCOUNT:
            which = (f"name={name}", f"cluster={cluster}")
            found.append(("sacctmgr", "-i", "modify", "account", "where", *which, "set", *settings))
        else:
            account, user, *parts = name.split("/")
            users.setdefault((account, "".join(parts), settings), []).append(user)
    for (account, partition, settings), names in users.items():
        scope = (f"account={account}", f"cluster={cluster}", *((f"partition={partition}",) if partition else ()))
        for at in range(0, len(names), _TOGETHER):
            some = f"name={','.join(names[at : at + _TOGETHER])}"
            found.append(("sacctmgr", "-i", "modify", "user", "where", some, *scope, "set", *settings))
    return tuple(found)


def _settings(entity: Entity, limits: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return sacctmgr's arguments; several TRES share one argument, and the allowed QOS come before the default."""
    words: dict[str, list[str]] = {}
    for key, want in sorted(limits, key=lambda one: (one[0] != "QOS", one[0])):
        word, _, tres = key.partition("/")
        if word in ("Flags", "QOS") and tres:  # "Flags=-NoDecay" does nothing (seen on 22.05)
            words.setdefault(f"{word}+" if want else f"{word}-", []).append(tres)
            continue
        word = _ON_QOS.get(word, word) if entity is Entity.QOS else word
        value = want or "-1"
        words.setdefault(word, []).append(f"{tres}={value}" if tres else value)
    return tuple(f"{name}={','.join(values)}" for name, values in words.items())
