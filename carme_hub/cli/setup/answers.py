"""Answers: read from a file and flags, completed by defaults and by asking, and as typed values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carme_hub.errors import CarmeError

from .checks import PORTS, nearest, words, yes
from .facts import Facts
from .questions import QUESTIONS, Question

_HOW = "Give them as options (--group gpu-users), or in a file: --answers FILE (YAML, one answer a line)."
#: Asks a person; gets the question, its default and what was wrong with the last answer; returns the answer.
Ask = Callable[[Question, str, str], str]


class AnswersWrong(CarmeError):
    """Answers are missing or wrong; the message lists all of them."""


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers, checked; their meaning is in ``questions``."""

    site: str
    hub_user: str
    state_folder: str
    libexec: str
    slurm_prefix: str
    slurm_conf: str
    cluster: str
    host: str
    web_server: str
    tls_certificate: str
    tls_key: str
    hub_address: str
    hub_port: int
    public_port: int
    proxy_api_port: int
    services_port: int
    images_port: int
    folders_port: int
    group: str
    admin_group: str
    submit_via: str
    rest_url: str
    partitions: tuple[str, ...]
    image: str
    test_user: str
    container_runtime: str
    local_passwords: bool
    quotas: bool
    reservations: bool
    activity: bool
    image_store: str
    node_images: str
    folders: str
    scratch: str
    memory_max: str

    @property
    def config_folder(self) -> str:
        """The folder of the hub's configuration."""
        return f"/etc/{self.site}"


def from_document(document: object, where: str) -> dict[str, str]:
    """Return the answers of a parsed YAML document as text.

    Raises:
        AnswersWrong: it is no mapping, an answer is unknown, or a value is neither text, number, yes or no, nor a list.
    """
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise AnswersWrong(f"{where}: write one answer a line, such as `group: gpu-users`")
    known = [each.name for each in QUESTIONS]
    found, problems = {}, []
    for name, value in document.items():
        if name not in known:
            problems.append(nearest(str(name), known, "answer"))
            continue
        text = _text(value)
        if text is None:
            problems.append(f"{name}: {value!r} is neither a text, a number, yes or no, nor a list of them")
        else:
            found[str(name)] = text
    if problems:
        raise AnswersWrong(f"{where}:\n  " + "\n  ".join(problems))
    return found


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, str | int):
        return str(value).strip()
    if isinstance(value, list):
        parts = [_text(each) for each in value]
        return ",".join(part for part in parts if part) if None not in parts else None
    return None


def complete(
    given: Mapping[str, str], facts: Facts, ask: Ask | None = None, only: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the text of every answer: what was given, else what a person says, else the default.

    Args:
        ask: None where nobody can be asked.
        only: the names of some questions; the others are left out. () = all.

    Raises:
        AnswersWrong: listing everything that is missing or wrong. With ``ask`` a wrong answer is asked again.
    """
    values: dict[str, str] = {}
    missing, problems = [], []
    for question in QUESTIONS:
        if (only and question.name not in only) or not question.when(values):
            values.setdefault(question.name, "")
            continue
        default = question.default(facts, values)
        said = given.get(question.name)
        text, wrong = default if said is None else said, ""
        if said is not None or not (ask and question.asked):
            wrong = _wrong(question, facts, values, text)
        if ask is not None and (wrong or (said is None and question.asked)):
            text = _ask(ask, question, facts, values, default, wrong)
        elif wrong and not text:
            missing.append(f"{question.name}: {question.text}")
        elif wrong:
            problems.append(f"{question.name}: {wrong}")
        values[question.name] = text
    if missing or problems:
        raise AnswersWrong("\n".join([*_listed("missing", missing), *_listed("wrong", problems), _HOW]))
    return values


def _listed(what: str, lines: list[str]) -> list[str]:
    return [f"These answers are {what}:", *(f"  {line}" for line in lines)] if lines else []


def _wrong(question: Question, facts: Facts, values: Mapping[str, str], text: str) -> str:
    if not text:
        return "" if question.optional else "an answer is needed"
    return question.check(facts, values, text)


def _ask(ask: Ask, question: Question, facts: Facts, values: Mapping[str, str], default: str, wrong: str) -> str:
    while True:
        text = ask(question, default, wrong).strip()
        wrong = _wrong(question, facts, values, text)
        if not wrong:
            return text


def typed(values: Mapping[str, str]) -> Answers:
    """Return complete answers as typed values."""
    found: dict[str, object] = dict(values)
    for name in PORTS:
        found[name] = int(values[name])
    for name in ("local_passwords", "quotas", "reservations", "activity"):
        found[name] = yes(values[name])
    found["partitions"] = words(values["partitions"])
    return Answers(**found)  # type: ignore[arg-type]
