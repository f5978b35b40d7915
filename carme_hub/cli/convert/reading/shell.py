"""Read a batch script, a prologue, or the script of an app of Open OnDemand: what each of its commands is for.

The script does not run. Known are options of sbatch, modules, environments that are activated, exported variables with
a constant value, and containers; commands that have no meaning in a container are left out. All else is ``Other``.
Templates (Jinja's ``{{ }}`` and ``{% %}``, batchspawner's ``{name}``, ERB's ``<%= %>``) are no values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Short options of sbatch(1) that scripts have.
SHORT = {
    **{
        "A": "account",
        "c": "cpus-per-task",
        "C": "constraint",
        "D": "chdir",
        "e": "error",
        "G": "gpus",
        "J": "job-name",
    },
    **{"N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time", "w": "nodelist"},
    **{"x": "exclude", "L": "licenses", "M": "clusters"},
}
#: Options of singularity(1) and apptainer(1) that take a value, besides --bind.
_WITH_VALUE = {
    *("-H", "--home", "--env", "--env-file", "-W", "--workdir", "--pwd", "--cwd", "--overlay", "-o", "--app", "-S"),
    *("--scratch", "--network", "--security", "--hostname", "--dns", "--fakeroot-helper", "--mount"),
}
#: The longest text that variables are expanded to.
_LONGEST = 10_000
#: None begins inside another one, so that looking for the end of many that have none takes no time.
_TEMPLATE = re.compile(r"\{\{(?:(?!\{\{).)*?\}\}|\{%(?:(?!\{%).)*?%\}|\{\w+(?:\[\w+\])?\}|<%(?:(?!<%).)*?%>", re.DOTALL)
_NOTHING = re.compile(
    r"set [+-]\S.*|trap .*|echo\b.*|which .*|hostname|date|env\b( *\|.*)?|module (purge|list|restore)"
    r"|unset \S+|export \S+|umask \d+|\(|\)|do|break|continue|esac|(for|while|case) [^;]*(; do)?|done\b.*"
    r"|(el)?if [^;]*(; *then)?|(function \w+|\w+ ?\(\)).*\{"
    r"|cd( [\"']?(\$\{?\w+\}?|~)[\"']?)?|\{|\}|fi|done|else|then|\{ set .*|sleep .*|jupyter kernelspec list"
)
#: What starts the single-user server, which Carme Hub does itself: alone on its line, perhaps by srun.
_SERVER = re.compile(
    r"(exec |srun\b[^|;&]*? )?\S*((batchspawner|jupyterhub)-singleuser\b|jupyter[- ](lab\b|notebook\b|<%))"
)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of sbatch; ``value`` is None where it is a template, "" where there is none."""

    line: int
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Module:
    """A module that is loaded."""

    line: int
    names: str


@dataclass(frozen=True, slots=True)
class Export:
    """A variable with a constant value."""

    line: int
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Activation:
    """An environment of Python that is activated."""

    line: int
    command: str


@dataclass(frozen=True, slots=True)
class Container:
    """A container that is started; ``image`` and ``binds`` may hold templates and variables."""

    line: int
    runtime: str
    image: str
    binds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """A command that somebody has to look at."""

    line: int
    command: str


Item = Option | Module | Export | Activation | Container | Other


@dataclass
class _Shell:
    variables: dict[str, str] = field(default_factory=dict)

    def expanded(self, text: str) -> str:
        """Return a text with the variables that the script has set; others stay."""

        def value(match: re.Match[str]) -> str:
            return self.variables.get(match[1] or match[2], match[0])

        for _ in range(5):  # a variable may hold others
            before, text = text, re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, text)
            if len(text) > _LONGEST:
                return before  # which may be as long as what it began with, and not twice as long at each line
            if text == before:
                break
        return text


def read_shell(text: str) -> list[Item]:
    """Return what a script does, in its order."""
    shell = _Shell()
    found: list[Item] = []
    for line, command in _commands(text):
        found += _read(line, command, shell)
    return found


def read_options(text: str, line: int) -> list[Option]:
    """Return the options of sbatch in a text such as ``--nodes=1 -C gpu``."""
    words, found = _split(text), []
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif re.match(r"-[A-Za-z]", word):
            name, value = SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            equals = value
        else:
            continue
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        found.append(Option(line, name, None if _TEMPLATE.search(value) else value.strip()))
    return found


def is_template(text: str) -> bool:
    """Whether a text has parts that only its program fills in."""
    return bool(_TEMPLATE.search(text))


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield each command and its line; a command may go on over several lines, and is kept in one."""
    held, began, end = "", 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if end:  # what a here-document writes into a file is no command
            end = "" if line.strip() == end else end
            continue
        line = re.sub(r"\{%-?\s*(if|elif|else|endif|for|endfor|set|raw|endraw)\b.*?%\}", "", line).strip()
        began = began if held else number
        if line.endswith("\\") and not line.startswith("#"):
            held += line[:-1].rstrip() + " "
            continue
        if held + line:
            yield began, held + line
            if written := re.match(r"(?:cat|tee)\b.*<<-?\s*[\"']?(\w+)", held + line):
                end = written[1]
        held = ""
    if held:
        yield began, held


def _read(line: int, command: str, shell: _Shell) -> Iterator[Item]:
    if command.startswith("#SBATCH"):
        text = re.split(r"\s#", command[7:])[0]
        if _TEMPLATE.fullmatch(text.strip()):
            return
        for option in read_options(text, line):
            if option.name.startswith("container-image"):  # Pyxis
                yield Container(line, "pyxis", option.value or "", ())
            else:
                yield option
        return
    if command.startswith("#") or not _TEMPLATE.sub("", command).strip():
        return
    if (container := _container(line, command, shell)) is not None:
        yield container
        return
    if match := re.fullmatch(r"(export )?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s;|&]*);?", command):
        value = match[3].strip("\"'")
        known = shell.expanded(value) if not match[3].startswith("'") else value
        shell.variables[match[2]] = known
        if match[1]:
            constant = not re.search(r"[$`]", known) and not is_template(known)
            yield Export(line, match[2], known) if constant else Other(line, command)
        return
    if match := re.fullmatch(r"(?:module|ml)(?: load| add)? +([^;|&]+)", command):
        if not re.fullmatch(r"(purge|list|restore)\b.*", match[1]):
            yield Module(line, match[1].strip())
        return
    if re.match(r"(source|\.) .*(activate|conda\.sh)|(conda|mamba|micromamba) activate|.*\bactivate\b", command):
        yield Activation(line, command)
        return
    if _NOTHING.fullmatch(command) or _SERVER.match(command) or re.match(r"(exec |srun\b.* )?\{{1,2} ?cmd\b", command):
        return
    without = _TEMPLATE.sub("", command).strip()
    if re.search(r"\{{1,2} ?(cmd|prologue|epilogue) ?\}", command) and re.fullmatch(r"(exec|srun.*)?", without):
        return
    yield Other(line, command)


def _container(line: int, command: str, shell: _Shell) -> Container | None:
    match = re.search(r"\b(singularity|apptainer)\s+(?:-\w+\s+)*(exec|run)\s(.*)", command)
    if match is None:
        if match := re.search(r"\bsrun\b(.*--container-image[= ].*)", command):
            options = {option.name: option.value or "" for option in read_options(match[1], line)}
            mounts = shell.expanded(options.get("container-mounts", "")).split(",")
            image = shell.expanded(options["container-image"])
            return Container(line, "pyxis", image, tuple(filter(None, mounts)))
        if match := re.search(
            r"\b(docker|podman|podman-hpc|shifter|enroot|ch-run|udocker)\s+(run|start|exec)\b", command
        ):
            return Container(line, match[1], "", ())
        return None
    words = _split(match[3])
    binds: list[str] = []
    while words and words[0].startswith(("-", "$")):
        word = words.pop(0)
        if word.startswith("$"):  # options that a variable holds, or the image
            known = shell.expanded(word)
            if not known.strip().startswith("-"):
                words.insert(0, known)
                break
            words[:0] = _split(known)
            continue
        name, equals, value = word.partition("=")
        if name in ("-B", "--bind"):
            binds += (value if equals or not words else words.pop(0)).split(",")
        elif name in _WITH_VALUE and not equals and words:
            words.pop(0)
    image = shell.expanded(words[0]) if words else ""
    return Container(line, "apptainer", image, tuple(shell.expanded(bind) for bind in binds if bind))


def _split(text: str) -> list[str]:
    """Split into words as a shell would; a template is one word, and unbalanced quotes are letters."""
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        held.append(match[0])
        return f"\x00{len(held) - 1}\x00"

    text = _TEMPLATE.sub(hold, text)
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.replace('"', "").replace("'", "").split()
    return [re.sub(r"\x00(\d+)\x00", lambda match: held[int(match[1])], word) for word in words]
