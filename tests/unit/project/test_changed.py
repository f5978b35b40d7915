"""`make test-changed` runs what a change can reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed import UNIT, module_of, reached


def _names(*paths: str) -> set[str]:
    return {str(path.relative_to(UNIT)) for path in reached({Path(path) for path in paths})}


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("carme_hub/domain/calendar/recurrence.py", "domain/calendar/test_recurrence.py"),
        ("spawners/form/options.py", "spawners/form/test_options.py"),
        ("share/carme_hub/templates/quotas/drift.html", "project/test_packaging.py"),
        ("docs/reference/rest.md", "services/quotas/rest/test_rest_reads.py"),
        ("tests/unit/spawners/forged_hub.py", "spawners/handlers/test_pages.py"),
        ("tests/unit/domain/cluster/test_tres.py", "domain/cluster/test_tres.py"),
    ],
)
def test_a_change_reaches_the_tests_that_use_it(path: str, test: str) -> None:
    assert test in _names(path)


def test_a_change_reaches_what_imports_its_importer_and_not_everything() -> None:
    found = _names("carme_hub/domain/calendar/recurrence.py")
    assert "booking/test_series.py" in found, "of booking, which imports the module"
    assert "slurm/submit/test_submit.py" not in found


def test_what_has_not_changed_needs_no_test() -> None:
    assert reached(set()) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("spawners/form/options.py", "carme_hub.spawners.form.options"),
        ("carme_hub/domain/__init__.py", "carme_hub.domain"),
        ("share/carme_hub/training/ddp.py", ""),
        ("README.md", ""),
    ],
)
def test_a_file_is_known_by_the_name_that_python_has_for_it(path: str, name: str) -> None:
    assert module_of(Path(path)) == name
