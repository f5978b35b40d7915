"""A Containerfile as the hub reads it: what it may say, on which images, and what buildah gets of it."""

from __future__ import annotations

import pytest

from carme_hub.domain.images.builds import CannotBuild
from carme_hub.domain.images.containerfile import Base, parse_containerfile, reference_of
from carme_hub.domain.images.containerfile_environ import environ_of, variables_of, words

DIGEST = "sha256:" + "a" * 64
USUAL = f"""# syntax=docker/dockerfile:1
# A comment
ARG PYTHON=3.12
FROM torch@{DIGEST} AS build
RUN apt-get update && \\
    # a comment between
    apt-get install --yes g++

RUN --mount=type=cache,target=/root/.cache/pip pip install rich
from scratch
USER jovyan
COPY --from=build --chown=1000:100 --chmod=0755 /usr/bin/tool /usr/bin/tool
COPY data /data
ENV DATA=/data
CMD ["jupyter"]
"""


def test_buildah_gets_what_the_hub_has_read_on_local_names() -> None:
    file = parse_containerfile(USUAL)
    assert file.bases == (Base("store", "torch", digest=DIGEST),)
    assert file.text(["localhost/base-0"]).splitlines() == [
        "ARG PYTHON=3.12",
        "FROM localhost/base-0 AS stage0",
        "RUN apt-get update &&     apt-get install --yes g++",
        "RUN pip install rich",
        "FROM scratch AS stage1",
        "COPY --from=stage0 --chmod=0755 /usr/bin/tool /usr/bin/tool",
        "COPY data /data",
        "ENV DATA=/data",
    ]
    assert "FROM x AS stage0\nARG MIRROR\nRUN" in file.text(["x"], ["MIRROR"])
    assert file.base == Base("scratch")
    assert (file.needs_files, file.needs_network) == (True, False)
    said = " ".join(file.notes)
    for word in ("USER is left out", "CMD is left out", "--chown is left out", "type=cache is left out"):
        assert word in said
    again = parse_containerfile(file.text(["localhost:5000/base"]), ("localhost:5000/base",))
    assert again.text(["x"]) == file.text(["x"]), "the normal form is its own"


def test_the_base_of_a_stage_on_a_stage_is_that_of_the_first() -> None:
    file = parse_containerfile("FROM torch AS one\nENV A=1\nFROM lab AS two\nRUN x\nFROM one\nENV B=$A\n")
    assert file.base == Base("store", "torch")
    assert [each.name for each in file.bases] == ["torch", "lab"]
    assert "FROM stage0 AS stage2" in file.text(["a", "b"])
    assert environ_of(file, {"PATH": "/bin"}) == {"PATH": "/bin", "A": "1", "B": "1"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lab-2026.1", Base("store", "lab-2026.1")),
        (DIGEST, Base("store", digest=DIGEST)),
        ("scratch", Base("scratch")),
        ("docker.io/library/python:3.12", Base("registry", "docker.io/library/python", "3.12")),
        ("docker://nvcr.io/nvidia/pytorch", Base("registry", "nvcr.io/nvidia/pytorch", "latest")),
        (f"localhost:5000/x@{DIGEST}", Base("registry", "localhost:5000/x", "", DIGEST)),
        ("registry:5000/x:1", Base("registry", "registry:5000/x", "1")),
    ],
)
def test_references(text: str, found: Base) -> None:
    assert reference_of(text) == found


@pytest.mark.parametrize("text", ["python:3.12", "library/python", "Torch", "a/../b", "docker.io/", "-x", "x@sha256:1"])
def test_what_is_no_reference_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(CannotBuild, match="with the registry's host"):
        reference_of(text)


def test_registries_are_those_that_the_site_allows() -> None:
    text = "FROM docker.io/library/python:3.12\n"
    with pytest.raises(CannotBuild, match=r"Line 1: FROM docker.io/library/python:3.12 is not allowed here\. This"):
        parse_containerfile(text)
    with pytest.raises(CannotBuild, match=r"Allowed are quay\.io/"):
        parse_containerfile(text, ("quay.io/*",))
    for allowed in ("docker.io/*", "docker.io/library/python"):
        assert parse_containerfile(text, (allowed,)).base.tag == "3.12"
    with pytest.raises(CannotBuild, match="not allowed"):
        parse_containerfile("FROM docker.io/library/pythonista\n", ("docker.io/library/python",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no FROM"),
        ("RUN x\n", "Line 1: RUN stands before"),
        ("FROM a\nRUN x \\\n", "Line 2 goes on"),
        ("# escape=`\nFROM a\nRUN true `\nFROM docker.io/x/y\n", "another escape"),
        ("FROM a\nRUN cat <<EOF\nFROM docker.io/x/y\nEOF\n", "Line 2: RUN with a here-document"),
        ("FROM a\nCOPY <<-'EOF' /x\n", "here-document"),
        ("FROM a\nONBUILD RUN x\n", "“ONBUILD RUN x” is not an instruction that is built here"),
        ("FROM a\nFRÖM b\n", "not an instruction"),
        ("FROM a\n\u00a0FROM docker.io/x/y\n", "not an instruction"),
        ("FROM a\nRUN x\x0bFROM b\n", "Line 2 has a control character"),
        ("FROM a\nRUN x\u2028FROM b\n", "control character"),
        ("FROM $BASE\n", "no variable"),
        ("FROM --platform=linux/arm64 a\n", "--platform"),
        ("FROM a b\n", "Write FROM IMAGE"),
        ("FROM a AS one\nFROM b AS one\n", "name of a stage"),
        ("FROM a\nRUN --network=host x\n", "RUN --network is not built"),
        ("FROM a\nRUN --mount=type=bind,from=docker.io/x/y,target=/x x\n", "RUN --mount is not built"),
        ('FROM a\nCOPY --from="docker.io/x" /a /b\n', "not an option"),
        ("FROM a\nCOPY --from=docker.io/x/y /a /b\n", "no earlier stage"),
        ("FROM a\nCOPY --from=0 /a /b\n", "no earlier stage"),
        ("FROM a AS one\nCOPY --from=one /a /b\n", "no earlier stage"),
        ("FROM a\nCOPY --parents a b\n", "COPY --parents is not built"),
        ("FROM a\nENV\n", "ENV says nothing"),
        ("FROM a\nRUN pip install -i https://me:secret@host/simple x\n", "contains a password"),
        ("FROM a\n" + "RUN x\n" * 3000, "too long"),
        ("FROM a\n" * 11, "more than 10 stages"),
    ],
)
def test_what_is_not_built_names_its_line(text: str, said: str) -> None:
    with pytest.raises(CannotBuild) as refused:
        parse_containerfile(text)
    assert said in refused.value.message


def test_a_shift_and_a_here_string_are_no_here_documents() -> None:
    text = "FROM a\nRUN echo $((1 << 2)) && bash -c 'cat <<<word'\n"
    assert "<<<word" in parse_containerfile(text).text(["b"])


@pytest.mark.parametrize(
    ("text", "files", "network"),
    [
        ("ADD https://example.org/x.tar /x", False, True),
        ("ADD https://example.org/x.tar here /x/", True, True),
        ("ADD here.tar /x", True, False),
        ('COPY ["a b", "/x"]', True, False),
    ],
)
def test_files_and_network_are_known(text: str, files: bool, network: bool) -> None:
    file = parse_containerfile(f"FROM a\n{text}\n")
    assert (file.needs_files, file.needs_network) == (files, network)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1 B=2", {"A": "1", "B": "2"}),
        ("A=\"1 2\" B='$A' C=1\\ 2", {"A": "1 2", "B": "$A", "C": "1 2"}),
        ("A one two", {"A": "one two"}),
        ("PATH=/opt/x/bin:$PATH", {"PATH": "/opt/x/bin:/bin"}),
        ("A=${PATH}x${NONE:-y}${PATH:+z}${NONE:+q}", {"A": "/binxyz"}),
        ('A=\\$PATH B="\\"x" C=$', {"A": "$PATH", "B": '"x', "C": "$"}),
    ],
)
def test_variables_are_set_as_buildah_does(text: str, found: dict[str, str]) -> None:
    assert environ_of(parse_containerfile(f"FROM a\nENV {text}\n"), {"PATH": "/bin"}) == {"PATH": "/bin", **found}


def test_arguments_have_their_defaults_and_no_session_gets_them() -> None:
    text = "ARG V=1\nFROM docker.io/x/y\nARG V\nARG W=$V.2\nENV A=$W\nRUN true\n"
    found = variables_of(text, {})
    assert (found["A"], "V" in found, "W" in found) == ("1.2", False, False)
    assert found["PATH"].endswith("/sbin:/bin")


@pytest.mark.parametrize("text", ["A=1 B", 'A="x', "1A=x", "A=${x", "A=${x/y/z}", "A"])
def test_variables_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(CannotBuild, match="Line 2: "):
        environ_of(parse_containerfile(f"FROM a\nENV {text}\n"), {})


def test_no_variable_grows_without_end() -> None:
    text = "FROM a\nENV A=0123456789\n" + "ENV A=$A$A$A$A$A$A$A$A\n" * 30
    with pytest.raises(CannotBuild, match="too long"):
        environ_of(parse_containerfile(text), {})
    assert words("a  'b c'\t\"d\"", {}) == ["a", "b c", "d"]
