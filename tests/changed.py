"""Print the unit tests that a change can reach: ``make test-changed``.

A change is what differs from the commit that is named (else the last one), with what git does not know yet. Reached is
a test file that was changed itself, or that imports a changed module, or a module which imports that one,
at most two imports away; the graph of imports is grimp's, which import-linter brings. Where a file is no module (a
template, a setting, a document) the tests that name it are reached. What lies further away is for `make test`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
UNIT = ROOT / "tests" / "unit"
#: How many imports away a test may be.
FAR = 2


def changed(since: str) -> set[Path]:
    """Return the paths that differ from a commit, of those that exist."""
    listed = _git("diff", "--name-only", since) + _git("ls-files", "--others", "--exclude-standard")
    return {path for name in listed if (path := Path(name)) and (ROOT / path).exists()}


def module_of(path: Path) -> str:
    """Return the name under which Python knows a file; empty for what is no module of ours."""
    parts = list(path.with_suffix("").parts)
    if path.suffix != ".py" or parts[0] not in {"carme_hub", "spawners", "services", "sandbox"}:
        return ""
    if parts[0] != "carme_hub":
        parts.insert(0, "carme_hub")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def reached(paths: set[Path]) -> list[Path]:
    """Return the files of unit tests that a change of these paths can reach, sorted."""
    if not paths:
        return []
    graph = _graph()
    near = {name for path in paths if (name := module_of(path)) in graph.modules}
    modules, edge = set(near), set(near)
    for _ in range(FAR - 1):
        edge = {above for name in edge for above in graph.find_modules_that_directly_import(name)} - modules
        modules |= edge
    names = {path.name for path in paths if not module_of(path) and path.suffix != ".py"}
    supports = {path.stem for path in paths if path.suffix == ".py" and path.parts[0] == "tests"}
    found = {ROOT / path for path in paths if path.name.startswith("test_") and UNIT in (ROOT / path).parents}
    for file in UNIT.rglob("test_*.py"):
        text = file.read_text(encoding="utf-8")
        imported = _imports(file)
        if imported & (modules | supports) or any(name in text for name in names):
            found.add(file)
    found |= set((UNIT / "project").glob("test_*.py"))
    return sorted(found)


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("carme_hub")


@cache
def _imports(file: Path) -> set[str]:
    """Return the modules that a file imports, each also as ``package.name`` of what it takes from a package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, node.module.rpartition(".")[2]}
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _git(*argv: str) -> list[str]:
    return subprocess.run(["git", *argv], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    tests = reached(changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))
    print("\n".join(str(path.relative_to(ROOT)) for path in tests))
