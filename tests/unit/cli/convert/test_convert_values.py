"""What stands in a file is read, and nothing of it runs; what only running would show is known to be unknown."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from carme_hub.cli.convert.reading.config_file import read_config_file
from carme_hub.cli.convert.reading.values import Imported, LocalClass, Unknown
from carme_hub.errors import ConfigError


def value_of(text: str) -> Any:
    """Return the value of ``c.A.x`` at the end of a file."""
    setting = read_config_file(text, "old.py").last("A", "x")
    assert setting is not None
    return setting.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("c.A.x = 12*3600", 43200),
        ("c.A.x = -1 if 2 > 1 else 0", -1),
        ("n = 'gpu'\nc.A.x = f'{n}:{2:02d}'", "gpu:02"),
        ("c.A.x = '/a/' + 'b'", "/a/b"),
        ("c.A.x = '%s:%d' % ('a', 2)", "a:2"),
        ("c.A.x = ','.join(['a', 'b'])", "a,b"),
        ("c.A.x = dict(a=1, **{'b': 2})", {"a": 1, "b": 2}),
        ("base = {'a': 1}\nc.A.x = {**base, 'a': 2}", {"a": 2}),
        ("import os\nc.A.x = os.path.join('/srv', 'hub')", "/srv/hub"),
        ("c.A.x = [f'{n}G' for n in (1, 2) if n > 1]", ["2G"]),
        ("c.A.x = {k: v for k, v in {'a': 1}.items()}", {"a": 1}),
        ("c.A.x = 'a'\nc.A.x += 'b'", "ab"),
        ("c.A.x.append('a')\nc.A.x.append('b')", ["a", "b"]),
        ("c.A.x.update({'a': 1})", {"a": 1}),
        ("d = {'a': 1}\nd.update(b=2)\nc.A.x = d", {"a": 1, "b": 2}),
        ("d = {'a': 1}\nd.update({'b': 1}, b=2)\nc.A.x = d", {"a": 1, "b": 2}),
        ("n = ['a', 'b']\nn.insert(0, 'c')\nc.A.x = n", ["c", "a", "b"]),
        ("n = ['a', 'b']\nn.insert(-1, 'c')\nc.A.x = n", ["a", "c", "b"]),
        ("c.A.x = ['a']\nc.A.x.prepend(['b', 'c'])", ["b", "c", "a"]),
        ("c.A.x = {}\nfor n in ['a', 'b']:\n    c.A.x[n] = n.upper()", {"a": "A", "b": "B"}),
        ("names = []\nfor n in range(3):\n    names.append(n)\nc.A.x = names", [0, 1, 2]),
        ("if True:\n    c.A.x = 1\nelse:\n    c.A.x = 2", 1),
        ("c.B.y = 'a'\nc.A.x = c.B.y + 'b'", "ab"),
        ("a, b = 1, 2\nc.A.x = b", 2),
        ("config = get_config()\nconfig.A.x = 3", 3),
        ("from m import K\nc.A.x = K", Imported("m.K")),
        ("import m.n\nc.A.x = m.n.K", Imported("m.n.K")),
        ("from m import K\nclass L(K):\n    pass\nc.A.x = L", LocalClass("L", ("m.K",))),
    ],
)
def test_what_stands_in_the_file_is_read(text: str, value: object) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os\nc.A.x = os.environ['A']", "os.environ"),
        ("import os\nc.A.x = os.environ.get('A', 'b')", "os.environ"),
        ("import os\nc.A.x = os.getenv('A')", "os.environ"),
        ("c.A.x = open('/etc/passwd').read()", "calls open('/etc/passwd').read()"),
        ("def f():\n    return 1\nc.A.x = f()", "calls f()"),
        ("def str(x):\n    return 1\nc.A.x = str(2)", "calls str()"),
        ("import os\nif 'A' in os.environ:\n    c.A.x = 1", "condition"),
        ("while True:\n    c.A.x = 1", "while"),
        ("try:\n    c.A.x = 1\nexcept OSError:\n    pass", "try"),
        ("with open('f') as f:\n    c.A.x = f.read()", "with"),
        ("for n in range(3):\n    if n:\n        break\n    c.A.x = n", "loop"),
        ("c.A.x = missing", "missing is not a literal"),
        ("import s\nif s.DEBUG:\n    c.A.x = 1", "s.DEBUG is known only when the file runs"),
        ("import s\nc.A.x = 1 if s.MODE == 'a' else 2", "s.MODE is known only"),
        ("import s\nc.A.x = 1 if s.MODE else 2", "s.MODE is known only"),
        ("import s\nc.A.x = not s.MODE", "s.MODE is known only"),
        ("import s\nc.A.x = s.MODE or 'a'", "s.MODE is known only"),
        ("import s\nc.A.x = 'a' in [s.MODE]", "[s.MODE] is known only"),
        ("import s\nc.A.x = f'{s.PLACE}/a'", "s.PLACE is known only"),
        ("import s\nc.A.x = '%s/a' % s.PLACE", "s.PLACE is known only"),
        ("import s\nc.A.x = '{}/a'.format(s.PLACE)", "known only"),
        ("import s\nc.A.x = str(s.PLACE)", "known only"),
        ("from ours import len\nc.A.x = len('a')", "calls len()"),
        ("c.A.x = '{0.__class__}'.format(1)", "an attribute"),
        ("import os\nc.A.x = '{0.__init__.__globals__}'.format(os)", "an attribute"),
        ("c.A.x = 1/0", "ZeroDivisionError"),
        ("d = {'a': 1}\nd['a'], d['b'] = 2, 3\nc.A.x = d", "unpacked"),
        ("d = {'a': 1}\nd.update(**f())\nc.A.x = d", "computed name"),
        ("n = ['a']\nn.insert(f(), 'c')\nc.A.x = n", "calls f()"),
        ("d = {'a': 1}\ndel d['a']\nc.A.x = d['a']", "deleted"),
        ("c.A.x = 1\ndel c.A.x", "deleted"),
        ("d = {}\nd['a'] = d\nc.A.x = d", "computed name"),
        ("c.A.x = lambda: 1", "computed"),
    ],
)
def test_what_only_running_would_show_is_unknown_with_its_reason(text: str, reason: str) -> None:
    value = value_of(text)
    assert isinstance(value, Unknown)
    assert reason in value.reason


def test_an_entry_that_cannot_be_read_leaves_the_others_readable() -> None:
    value = value_of("c.A.x = {'a': 1, 'b': f()}\n")
    assert value["a"] == 1
    assert isinstance(value["b"], Unknown)
    first, second = value_of("c.A.x = [1, f()]\n")
    assert (first, type(second)) == (1, Unknown)


def test_lines_of_entries_and_of_texts_are_known() -> None:
    file = read_config_file('text = """one\ntwo\nthree"""\nc.A.x = [\n    {"a": 1},\n    dict(b=text),\n]\n', "old.py")
    setting = file.last("A", "x")
    assert setting is not None
    assert [file.values.line_of(setting.value, n, 0) for n in (0, 1)] == [5, 6]
    assert file.lines_in_text(setting.value[1]["b"], setting.line) == {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(
    "text",
    [
        "c.A.x = 'a' * 10**12",
        "c.A.x = 9**9**9**9",
        "c.A.x = f'{1:>999999999}'",
        "c.A.x = '%999999999d' % 1",
        "c.A.x = '%(a)999999999d' % {'a': 1}",
        "c.A.x = '{:>999999999}'.format(1)",
        "c.A.x = '{0:>{1}}'.format(1, 999999999)",
        "a = 'aaaaaaaaaa'\n" + "a = a + a\n" * 60 + "c.A.x = a",
        "a = [1, 2]\n" + "a = a + a\n" * 60 + "c.A.x = a",
        "a = 'aaaaaaaaaa'\n" + "a = a + a\n" * 16 + "c.A.x = a.replace('a', a)",
        "a = 'aaaaaaaaaa'\n" + "a = a + a\n" * 16 + "c.A.x = ''.join([a for n in range(900)])",
        "a = 'aaaaaaaaaa'\n" + "a = a + a\n" * 16 + "c.A.x = str([a for n in range(900)])",
        "a = 'aaaaaaaaaa'\n" + "a = a + a\n" * 16 + "c.A.x = '" + "{0}" * 900 + "'.format(a)",
        "a = 'aaaaaaaaaa'\n" + "a = a + a\n" * 16 + "c.A.x = '" + "%(a)s" * 900 + "' % {'a': a}",
        "a = 'aaaaaaaaaa'\n" + "a = a + a\n" * 16 + "c.A.x = f'" + "{a}" * 900 + "'",
        "a = 99999999\n" + "a = a * a\n" * 60 + "c.A.x = a",
        "c.A.x = [[a for a in range(900)] for b in range(900)]",
        "c.A.x = list(range(10**15))",
        "c.A.x = (0,) * 30000000",
        "c.A.x = b'a' * 200000000",
        "a = b'aaaaaaaaaa'\n" + "a = a + a\n" * 25 + "c.A.x = a",
        "a = [1]\n" + "a = [a, a]\n" * 60 + "c.A.x = a",
        "a = [1]\n" + "a = {'b': a, 'c': a}\n" * 60 + "c.A.x = str(a)",
        "a = [1]\n" + "a.append(a)\n" * 60 + "c.A.x = a",
        "a = {}\n" + "a['b'] = [a, a]\n" * 60 + "c.A.x = a",
        "c.A.x = " + "(" * 80 + "1" + ")" * 80 + "[0]" * 60,
        "c.A.x = " + "-" * 3000 + "1",
    ],
)
def test_no_file_makes_reading_long(text: str) -> None:
    began = time.monotonic()
    tracemalloc.start()
    try:
        value = value_of(text)
    except ConfigError:
        value = Unknown("", 0)  # Python's own parser refuses it
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert isinstance(value, Unknown) or len(str(value)) < 2_000_000
    assert time.monotonic() - began < 5
    assert peak < 150e6


def test_nothing_of_the_file_runs(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"""
import pathlib
pathlib.Path({str(mark)!r}).touch()
c.A.x = pathlib.Path({str(mark)!r}).touch()
class K:
    y = pathlib.Path({str(mark)!r}).touch()
c.A.y = [].__class__.__base__.__subclasses__()
c.A.z = "{{0.__class__}}".format(1)
"""
    read_config_file(text, "old.py")
    assert not mark.exists()


def test_a_template_that_is_no_python_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"old\.py:2: this is not Python .* rendered first"):
        read_config_file("c.A.x = 1\n{% raw %}\n", "old.py")
