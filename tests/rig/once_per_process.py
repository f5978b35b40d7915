"""What unit tests in one process do once, where libraries do it for each hub, site or page.

Each costs milliseconds of a processor, in thousands of tests: RSA keys, templates that Jinja compiles, and the entry
points of all installed packages. Programs that tests start do all of it themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoints
from itertools import cycle
from types import CodeType
from typing import Any

import jinja2
import jupyterhub.traitlets
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

#: A site has fewer certificates than this, and each of them another key.
KEYS = 8


@pytest.fixture(autouse=True, scope="session")
def _once_per_process() -> Iterator[None]:
    """Make keys, compile templates and look for entry points once in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rsa, "generate_private_key", _keys_made_once())
        patch.setattr(jinja2.Environment, "compile", _templates_compiled_once())
        patch.setattr(jupyterhub.traitlets, "entry_points", _entry_points_found_once())
        yield


def _keys_made_once() -> Any:
    generate, made = rsa.generate_private_key, {}

    def key(public_exponent: int, key_size: int, backend: Any = None) -> rsa.RSAPrivateKey:
        kind = (public_exponent, key_size)
        if kind not in made:
            made[kind] = cycle([generate(public_exponent, key_size, backend) for _ in range(KEYS)])
        return next(made[kind])

    return key


def _templates_compiled_once() -> Any:
    compile_template, compiled = jinja2.Environment.compile, {}

    def code(
        self: jinja2.Environment, source: Any, name: Any = None, filename: Any = None, *more: Any, **named: Any
    ) -> Any:
        if not isinstance(source, str) or more or named:
            return compile_template(self, source, name, filename, *more, **named)
        kind = (type(self), self.is_async, self.autoescape, self.lexer, tuple(self.extensions), name, filename, source)
        if kind not in compiled:
            compiled[kind] = compile_template(self, source, name, filename)
        found: CodeType = compiled[kind]
        return found

    return code


def _entry_points_found_once() -> Any:
    find, found = jupyterhub.traitlets.entry_points, {}

    def entry_points(*, group: str) -> EntryPoints:
        place = (group, *sys.path)  # tests of extensions install packages into folders of their own
        if place not in found:
            found[place] = find(group=group)
        known: EntryPoints = found[place]
        return known

    return entry_points
