"""A Containerfile that a user wants built: what it may say, and the form in which the job's buildah gets it. Pure.

What the hub has read is what buildah reads: the normal form has one instruction on each line, without comments,
directives, continued lines and here-documents, about which two readers could disagree. Each ``FROM`` is an image of the
site's stores, a reference to a registry that the site allows, an earlier stage or ``scratch``; it becomes a local name
in the job, so buildah fetches nothing by itself. ``containerfile_environ`` reads what ``ENV`` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from .builds import MOST_TEXT, CannotBuild
from .offers import DIGEST, NAME

#: Instructions that mean nothing for sessions, and are left out.
WITHOUT_EFFECT = {
    "CMD": "sessions start their own program",
    "ENTRYPOINT": "sessions start their own program",
    "EXPOSE": "the hub chooses the port",
    "HEALTHCHECK": "the hub looks whether a session answers",
    "MAINTAINER": "the author is whoever builds it",
    "STOPSIGNAL": "sessions are ended by the hub",
    "USER": "a job without rights builds everything, and a session runs as its user",
    "VOLUME": "an image is read-only in sessions",
}
#: Those that buildah gets.
KNOWN = ("ADD", "ARG", "COPY", "ENV", "LABEL", "RUN", "SHELL", "WORKDIR")
_MOST_LINES, _MOST_STAGES = 2000, 10
_KEYWORD = re.compile(r"([A-Za-z]+)(?:[ \t]+(.*))?")
_FLAG = re.compile(r"--([a-z]+)(?:=([A-Za-z0-9_.,:@/=-]*))?")
_DIRECTIVE = re.compile(r"#[ \t]*([A-Za-z]+)[ \t]*=[ \t]*(.*?)[ \t]*")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*[\"']?[A-Za-z_]")
_STAGE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_MODE = re.compile(r"[0-7]{3,4}")
_URL = re.compile(r"(https?|ftp|git)://|git@", re.IGNORECASE)
_SECRET_URL = re.compile(r"://(?!git@)[^/@\s$]+:[^/@\s$]+@")
# The grammar of github.com/distribution/reference, with a host that is written out.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = (
    r"(?:localhost|\[[0-9a-f:]+\]|[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)+)(?::[0-9]{1,5})?|[a-z0-9][a-z0-9-]*:[0-9]{1,5}"
)
_REGISTRY = re.compile(
    rf"(?P<repository>(?:{_HOST})(?:/{_PART})+)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True)
class Base:
    """An image below a stage.

    Attributes:
        kind: of the site's stores, of a registry, or nothing at all. name: of an image of the stores, "" where it is
            named by its digest alone; or the repository of a registry. tag: of a registry. digest: as it was written.
    """

    kind: Literal["store", "registry", "scratch"]
    name: str = ""
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        """Return the reference, as a registry's clients take it."""
        if self.kind == "scratch":
            return "scratch"
        tag = f":{self.tag}" if self.tag else ""
        return (f"{self.name}{tag}@{self.digest}" if self.name else self.digest) if self.digest else f"{self.name}{tag}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction in its normal form. ``line``: of the file, from 1."""

    line: int
    keyword: str
    text: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. ``base``: index in ``Containerfile.bases``; or ``stage``: index of an earlier stage."""

    name: str = ""
    base: int | None = None
    stage: int | None = None
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True, slots=True)
class Containerfile:
    """A Containerfile that can be built.

    Attributes:
        stages: in their order; the last one is the image. bases: what stands below them, each once. arguments: ``ARG``
            before the first stage. notes: sentences for its user. needs_files: it takes files of a folder.
        needs_network: it fetches what ``ADD`` names.
    """

    stages: tuple[Stage, ...]
    bases: tuple[Base, ...]
    arguments: tuple[Instruction, ...] = ()
    notes: tuple[str, ...] = ()
    needs_files: bool = False
    needs_network: bool = False

    @property
    def base(self) -> Base:
        """What stands below the last stage."""
        at = self._chain()[0].base
        return self.bases[at] if at is not None else Base("scratch")

    def layers(self) -> tuple[Instruction, ...]:
        """Return the instructions of which the image is made, those of the stages below the last one first."""
        return tuple(each for stage in self._chain() for each in stage.instructions)

    def _chain(self) -> list[Stage]:
        chain = [self.stages[-1]]
        while (below := chain[0].stage) is not None:
            chain.insert(0, self.stages[below])
        return chain

    def text(self, names: Sequence[str], arguments: Sequence[str] = ()) -> str:
        """Return it as buildah takes it.

        Args:
            names: of the bases, where it is built. arguments: names of variables of the site for its steps.
        """
        lines = [f"{each.keyword} {each.text}" for each in self.arguments]
        for number, stage in enumerate(self.stages):
            if stage.stage is not None:
                below = f"stage{stage.stage}"
            else:
                below = names[stage.base] if stage.base is not None else "scratch"
            lines += [f"FROM {below} AS stage{number}", *(f"ARG {each}" for each in arguments)]
            lines += [f"{each.keyword} {each.text}" for each in stage.instructions]
        return "\n".join(lines) + "\n"


def reference_of(text: str) -> Base:
    """Return the base that a ``FROM`` names.

    Raises:
        CannotBuild: it is none; the message says how one is written.
    """
    if text == "scratch":
        return Base("scratch")
    if DIGEST.fullmatch(text):
        return Base("store", digest=text)
    name, sign, digest = text.partition("@")
    if NAME.fullmatch(name) and (not sign or DIGEST.fullmatch(digest)):
        return Base("store", name, digest=digest)
    found = _REGISTRY.fullmatch(text.removeprefix("docker://"))
    if found is not None:
        tag = found["tag"] or ("" if found["digest"] else "latest")
        return Base("registry", found["repository"], tag, found["digest"] or "")
    raise CannotBuild(
        f"FROM {text[:80]}: name an image of this site as the form does, with @sha256:… if you like, or an image of a "
        "registry with the registry's host, such as docker.io/library/python:3.12."
    )


def check_registry(base: Base, allowed: Sequence[str]) -> None:
    """Refuse an image of a registry that the site does not allow.

    Args:
        allowed: repositories with their host, with ``*``.
    """
    if any(fnmatchcase(base.name, pattern) for pattern in allowed):
        return
    there = f"Allowed are {', '.join(allowed)[:300]}." if allowed else "This site allows none of a registry."
    raise CannotBuild(f"FROM {base} is not allowed here. {there} Take an image of the site, or ask an administrator.")


def parse_containerfile(text: object, allowed: Sequence[str] = ()) -> Containerfile:
    """Return what a Containerfile says.

    Args:
        allowed: repositories of registries that the site allows, with ``*``.

    Raises:
        CannotBuild: it is none, or has what is not built here; the message names the line.
    """
    return _Reader(allowed).read(_lines(text))


def _lines(text: object) -> list[tuple[int, str]]:
    """Return the instructions as they are written, each as one line with the number of its first line."""
    if not isinstance(text, str):
        raise CannotBuild("A Containerfile is lines of text.")
    if len(text) > MOST_TEXT or text.count("\n") > _MOST_LINES:
        raise CannotBuild(f"The Containerfile is too long: at most {MOST_TEXT >> 10} KiB and {_MOST_LINES} lines.")
    if _SECRET_URL.search(text):
        raise CannotBuild("The Containerfile contains a password, which everybody with the image could read.")
    found: list[tuple[int, str]] = []
    before, begun, directives = "", 0, True
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if any((ord(each) < 32 and each != "\t") or each in "\x7f\x85\u2028\u2029\ufeff" for each in line):
            raise CannotBuild(f"Line {number} has a control character, which is not text.")
        plain = line.strip(" \t")
        if plain.startswith("#"):
            directive = _DIRECTIVE.fullmatch(plain) if directives else None
            if directive is not None and directive[1].lower() == "escape" and directive[2] != "\\":
                raise CannotBuild(f"Line {number}: continue lines by a backslash; another escape is not read here.")
            directives = directives and directive is not None
            continue
        directives = False
        if not plain:
            continue
        begun = begun or number
        if plain.endswith("\\"):
            before += line.rstrip(" \t")[:-1]
            continue
        found.append((begun, (before + line).strip(" \t")))
        before, begun = "", 0
    if begun:
        raise CannotBuild(f"Line {begun} goes on in a next line, and there is none.")
    return found


@dataclass(slots=True)
class _Reader:
    """Reads the instructions of one Containerfile."""

    allowed: Sequence[str]
    stages: list[Stage] = field(default_factory=list)
    bases: list[Base] = field(default_factory=list)
    arguments: list[Instruction] = field(default_factory=list)
    current: list[Instruction] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    needs_files: bool = False
    needs_network: bool = False

    def read(self, lines: Sequence[tuple[int, str]]) -> Containerfile:
        """Return what the lines say."""
        for number, line in lines:
            try:
                self._take(number, line)
            except CannotBuild as error:
                raise CannotBuild(f"Line {number}: {error.message}") from error
        if not self.stages:
            raise CannotBuild("The Containerfile has no FROM, which names the image that it begins with.")
        self._close()
        return Containerfile(
            tuple(self.stages),
            tuple(self.bases),
            tuple(self.arguments),
            tuple(self.notes),
            self.needs_files,
            self.needs_network,
        )

    def _take(self, number: int, line: str) -> None:
        found = _KEYWORD.fullmatch(line)
        keyword, text = (found[1].upper(), (found[2] or "").strip(" \t")) if found else ("", "")
        if keyword in WITHOUT_EFFECT:
            self.notes[f"{keyword} is left out: {WITHOUT_EFFECT[keyword]}."] = None
            return
        if keyword != "FROM" and keyword not in KNOWN:
            known = ", ".join(("FROM", *KNOWN))
            raise CannotBuild(f"“{line[:40]}” is not an instruction that is built here. Known are {known}.")
        if not text:
            raise CannotBuild(f"{keyword} says nothing.")
        if keyword == "FROM":
            self._from(text)
            return
        if not self.stages and keyword != "ARG":
            raise CannotBuild(f"{keyword} stands before the first FROM.")
        if keyword in ("ADD", "COPY", "RUN") and _HERE_DOCUMENT.search(text):
            raise CannotBuild(f"{keyword} with a here-document (<<) is not built here. Write a file, and COPY it.")
        act: Callable[[str], str] | None = {"RUN": self._run, "COPY": self._copy, "ADD": self._add}.get(keyword)
        text = act(text) if act is not None else text
        (self.current if self.stages else self.arguments).append(Instruction(number, keyword, text))

    def _close(self) -> None:
        if self.stages:
            last = self.stages[-1]
            self.stages[-1] = Stage(last.name, last.base, last.stage, tuple(self.current))
        self.current = []

    def _from(self, text: str) -> None:
        words = text.split()
        if words[0].startswith("--"):
            raise CannotBuild(f"FROM {words[0][:40]} is not read here: an image is built for the nodes that there are.")
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
            raise CannotBuild("Write FROM IMAGE, or FROM IMAGE AS NAME.")
        if "$" in text:
            raise CannotBuild("FROM may have no variable: write the name of the image itself.")
        name = words[2].lower() if len(words) == 3 else ""
        names = [each.name for each in self.stages]
        if name and (not _STAGE.fullmatch(name) or name in names):
            raise CannotBuild(f"“{name[:40]}” cannot be the name of a stage, or is that of an earlier one.")
        if len(self.stages) == _MOST_STAGES:
            raise CannotBuild(f"There are more than {_MOST_STAGES} stages.")
        self._close()
        if words[0].lower() in filter(None, names):
            self.stages.append(Stage(name, stage=names.index(words[0].lower())))
            return
        base = reference_of(words[0])
        if base.kind == "registry":
            check_registry(base, self.allowed)
        if base.kind == "scratch":
            self.stages.append(Stage(name))
            return
        if base not in self.bases:
            self.bases.append(base)
        self.stages.append(Stage(name, base=self.bases.index(base)))

    def _flags(self, text: str) -> tuple[list[tuple[str, str]], str]:
        """Return the options before an instruction's words, and the words."""
        flags = []
        while text.startswith("--"):
            word, _, rest = text.replace("\t", " ").partition(" ")
            found = _FLAG.fullmatch(word)
            if found is None:
                raise CannotBuild(f"“{word[:60]}” is not an option that is read here.")
            flags.append((found[1], found[2] or ""))
            text = rest.lstrip(" ")
        return flags, text

    def _run(self, text: str) -> str:
        flags, text = self._flags(text)
        for name, value in flags:
            if name != "mount" or "type=cache" not in value.split(","):
                raise CannotBuild(f"RUN --{name} is not built here.")
            self.notes["RUN --mount=type=cache is left out: each build begins without a cache."] = None
        return text

    def _copy(self, text: str) -> str:
        flags, text = self._flags(text)
        kept, of_stage = [], False
        for name, value in flags:
            if name == "from":
                kept.append(f"--from=stage{self._earlier(value)}")
                of_stage = True
            elif name == "chmod" and _MODE.fullmatch(value):
                kept.append(f"--chmod={value}")
            elif name == "chown":
                self.notes["--chown is left out: everything in an image belongs to root."] = None
            elif name != "link":
                raise CannotBuild(f"COPY --{name} is not built here.")
        self.needs_files = self.needs_files or not of_stage
        return " ".join((*kept, text))

    def _earlier(self, value: str) -> int:
        names = [each.name for each in self.stages[:-1]]
        if value.isdigit() and int(value) < len(names):
            return int(value)
        if value and value.lower() in names:
            return names.index(value.lower())
        raise CannotBuild(
            f"--from={value[:60]} is no earlier stage. Write FROM {value[:60] or 'IMAGE'} AS NAME above, and "
            "--from=NAME here."
        )

    def _add(self, text: str) -> str:
        flags, words = self._flags(text)
        if not any(name == "from" for name, _ in flags) and _URL.search(words):
            self.needs_network = True
            before = self.needs_files
            kept = self._copy(text)
            # With a URL alone it takes no files of the folder.
            self.needs_files = before or not all(_URL.match(each) for each in words.split()[:-1])
            return kept
        return self._copy(text)
