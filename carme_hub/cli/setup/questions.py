"""What setup has to know: one question for each answer, with its default from the facts and its check. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carme_hub.containers.registry import RUNTIMES

from . import checks
from .checks import PORTS, Given, claimed, image_format
from .facts import Facts

#: Which runtime is proposed for a format of images, the first that nodes have.
_PREFERRED = {
    "sif": ("apptainer",),
    "sqfs": ("enroot", "pyxis", "charliecloud", "apptainer"),
    "host": ("bubblewrap",),
    "dir": ("apptainer", "charliecloud", "bubblewrap", "podman", "enroot"),
}


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        name: of the answer, in a file and as a flag. text: what is asked, and the help of the flag.
        default: from the facts and the answers before it; "" = a person must say, unless ``optional``.
        check: the facts, the answers and the text → what is wrong with it, "" if nothing is.
        asked: in a terminal, where nobody has said it; the others keep their defaults there.
        when: whether the answer matters, by the answers before it.
    """

    name: str
    text: str
    default: Callable[[Facts, Given], str]
    check: Callable[[Facts, Given, str], str]
    asked: bool = True
    optional: bool = False
    when: Callable[[Given], bool] = lambda _: True


def _fixed(text: str) -> Callable[[Facts, Given], str]:
    return lambda _facts, _given: text


def _offered(facts: Facts, _given: Given) -> str:
    return ",".join(each.name for each in facts.partitions if not each.reserved and each.nodes)


def _way(facts: Facts, _given: Given) -> str:
    return "sudo" if facts.sudo else "rest" if facts.jwt_key else ""


def _runtime(facts: Facts, given: Given) -> str:
    kind = "host" if facts.image.get("base") == "host" else image_format(given.get("image", ""))
    return next((name for name in _PREFERRED[kind] if name in facts.common_runtimes), "")


def _free(name: str, first: int) -> Callable[[Facts, Given], str]:
    """Return the default of a port: the usual one, or where that is taken, one of the next thousand."""

    def default(facts: Facts, given: Given) -> str:
        taken = {*facts.ports, *(number for each in PORTS for number in claimed(each, given.get(each, "")))}
        ports = (str(port) for port in range(first, 65000, 1000))
        return next((each for each in ports if taken.isdisjoint(claimed(name, each))), str(first))

    return default


def _web(facts: Facts, _given: Given) -> str:
    return next((name for name in ("nginx", "caddy") if name in facts.programs), "none")


def _with_nginx(given: Given) -> bool:
    return given.get("web_server") == "nginx"


def _with_store(given: Given) -> bool:
    return bool(given.get("image_store"))


def _with_rest(given: Given) -> bool:
    return given.get("submit_via") == "rest"


def _ports() -> tuple[Question, ...]:
    return tuple(
        Question(name, text, _free(name, first), checks.port(name), asked=False)
        for name, (first, text) in PORTS.items()
    )


#: In the order in which they are asked: a default looks at the answers before it.
QUESTIONS: tuple[Question, ...] = (
    Question(
        "site",
        "Name of the units, of the folders below /etc and /var/lib, and of the files in /etc: one for each hub here.",
        _fixed("carme-hub"),
        checks.like(checks.UNIT, "systemd and sudo take letters, digits, - and _ here, a letter first"),
        asked=False,
    ),
    Question("hub_user", "The user that the hub runs as.", _fixed("carme-hub"), checks.user, asked=False),
    Question(
        "state_folder",
        "Folder for databases, secrets and certificates.",
        lambda _, given: f"/var/lib/{given.get('site', 'carme-hub')}",
        checks.state_folder,
        asked=False,
    ),
    Question(
        "libexec",
        "Folder of the helpers; their settings are in etc beside it.",
        _fixed("/usr/local/libexec"),
        checks.libexec,
        asked=False,
    ),
    Question(
        "slurm_prefix",
        "Folder whose bin has Slurm's commands. Nothing = they are where units find programs, as in /usr/bin.",
        _fixed(""),
        checks.path,
        asked=False,
        optional=True,
    ),
    Question(
        "slurm_conf",
        "Client configuration for Slurm's commands (SLURM_CONF). Nothing = Slurm's own.",
        _fixed(""),
        checks.path,
        asked=False,
        optional=True,
    ),
    Question(
        "cluster",
        "Name of the cluster.",
        lambda facts, _: facts.cluster,
        checks.like(checks.WORD, "Slurm takes letters, digits and . _ - here"),
        asked=False,
    ),
    Question(
        "host",
        "Name of the hub as in a browser, without https://.",
        lambda facts, _: facts.host,
        checks.like(checks.HOST, "write the name of a machine, such as hub.example.org"),
    ),
    Question(
        "web_server",
        "What speaks TLS in front of the hub: nginx, caddy (a file for it is written), or none (you do it yourself).",
        _web,
        checks.one_of("nginx", "caddy", "none"),
    ),
    Question(
        "tls_certificate",
        "File of the certificate for that name, with its chain.",
        _fixed(""),
        checks.path,
        when=_with_nginx,
    ),
    Question("tls_key", "File of the certificate's key.", _fixed(""), checks.path, when=_with_nginx),
    Question(
        "hub_address",
        "Address or name of this machine, as compute nodes reach it.",
        lambda facts, _: facts.addresses[0] if facts.addresses else "",
        checks.address,
    ),
    *_ports(),
    Question("group", "Group of the system whose members may log in and start sessions.", _fixed(""), checks.group),
    Question(
        "admin_group",
        "Group of the system whose members administer the hub; nothing = nobody.",
        _fixed(""),
        checks.group,
        optional=True,
    ),
    Question(
        "submit_via", "How jobs are submitted as their users: sudo, or rest (slurmrestd).", _way, checks.submit_via
    ),
    Question(
        "rest_url",
        "Address of slurmrestd: unix:///run/slurmrestd/slurmrestd.sock or http://host:6820.",
        _fixed(""),
        checks.like(checks.REST, "write unix:///path or http://host:port"),
        when=_with_rest,
    ),
    Question("partitions", "Partitions to offer, a profile for each.", _offered, checks.partitions),
    Question("image", "Container image that sessions start in: a path on the compute nodes.", _fixed(""), checks.path),
    Question(
        "test_user",
        "A user for the test: looks on a node for container runtimes, and starts the test sessions. Nothing = nobody.",
        _fixed(""),
        checks.person,
        optional=True,
    ),
    Question(
        "container_runtime",
        f"Container runtime of the nodes: {', '.join(RUNTIMES)}.",
        _runtime,
        checks.container_runtime,
    ),
    Question(
        "local_passwords",
        "Whether passwords are in this machine's /etc/shadow, which the hub then reads by the group shadow.",
        lambda facts, _: "yes" if facts.local_passwords else "no",
        checks.local_passwords,
        asked=False,
    ),
    Question("quotas", "Keep accounts of GPU time.", _fixed("no"), checks.yes_or_no, asked=False),
    Question("reservations", "Keep a calendar in which GPUs are booked.", _fixed("no"), checks.yes_or_no, asked=False),
    Question("activity", "Measure what jobs use.", _fixed("no"), checks.yes_or_no, asked=False),
    Question(
        "image_store",
        "Folder of root's with images by digest (carme-hub image add), the same on all nodes. Nothing = none.",
        _fixed(""),
        checks.of_root,
        asked=False,
        optional=True,
    ),
    Question(
        "node_images",
        "Folder of the nodes' own disks to which they fetch images of the store. Nothing = they use the store itself.",
        _fixed(""),
        checks.node_images,
        asked=False,
        optional=True,
        when=_with_store,
    ),
    Question(
        "folders",
        "Folder of root's below which users make folders that they share, the same on all nodes. Nothing = none.",
        _fixed(""),
        checks.of_root,
        asked=False,
        optional=True,
    ),
    Question(
        "scratch",
        "Folder of the nodes with scratch folders of sessions (carme-stage-out). Nothing = sessions copy no data.",
        _fixed(""),
        checks.path,
        asked=False,
        optional=True,
    ),
    Question(
        "memory_max",
        "Most memory of the hub with its services (MemoryMax of its unit), such as 4G.",
        _fixed("4G"),
        checks.like(checks.MEMORY, "write a number and M or G, such as 4G"),
        asked=False,
    ),
)
TEXTS: Mapping[str, str] = {each.name: each.text for each in QUESTIONS}
#: What has to be known before Slurm can be asked, and before a node can be looked at.
BEFORE_SLURM = ("site", "hub_user", "slurm_prefix", "slurm_conf")
#: Where nobody has said them they are what this machine says at the first time, and stay so: a name that resolves
#: otherwise for a while, or a web server that is installed later, moves no hub under its sessions.
STAY = ("host", "web_server", "hub_address", "submit_via", *PORTS)
BEFORE_NODES = (*BEFORE_SLURM, "group", "partitions", "image", "test_user")
