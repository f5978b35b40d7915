"""A server that is a script of the interpreter at hand goes on in it, and imports nothing of the hub's own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from test_singleuser import PROGRAM, HubThatAnswers, hub, run, write  # noqa: F401

SCRIPT = """\
import json, os, sys
begun = "SECRET" not in open("/proc/self/environ").read()
state = {"argv": sys.argv, "path": sys.path[0], "name": __name__, "begun": begun}
print("STATE" + json.dumps({**state, "token": os.environ["TOKEN"], "url": os.environ["JUPYTERHUB_SERVICE_URL"]}))
sys.exit(5)
"""


def server(folder: Path, first: str) -> str:
    path = folder / "bin" / "a-server"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{first}\n{SCRIPT}")
    path.chmod(0o755)
    return str(path)


def state(folder: Path, site: HubThatAnswers, first: str, **environ: str) -> dict[str, object]:
    path = server(folder, first)
    own = {"TOKEN": "SECRET", "JUPYTERHUB_SERVICE_PREFIX": "/user/alice/", **environ}
    write(folder, f"http://127.0.0.1:{site.server_port}/x", argv=[path, "--one"], environ=own)
    done = run(folder)
    assert done.returncode == 5, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout.split("STATE")[1])
    assert found["argv"] == [path, "--one"]
    assert found["path"] == str(Path(path).parent)
    assert found["name"] == "__main__"
    assert found["token"] == "SECRET"
    assert str(found["url"]).endswith("/user/alice/")
    return found


def test_a_script_of_this_interpreter_goes_on_in_it(tmp_path: Path, hub: Any) -> None:  # noqa: F811
    assert state(tmp_path, hub(), sys.executable)["begun"]
    assert state(tmp_path, hub(), "/usr/bin/env python", PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")["begun"]


@pytest.mark.parametrize("first", ["/usr/bin/python3", f"{sys.executable} -I", "/usr/bin/env python3"])
def test_any_other_program_replaces_it(tmp_path: Path, hub: Any, first: str) -> None:  # noqa: F811
    if first.endswith(" -I"):
        # Python in its isolated mode puts no folder of the script's first.
        path = server(tmp_path, first)
        write(tmp_path, f"http://127.0.0.1:{hub().server_port}/x", argv=[path], environ={"TOKEN": "SECRET"})
        assert '"begun": false' in run(tmp_path).stdout
    else:
        assert not state(tmp_path, hub(), first, PATH="/usr/bin:/bin")["begun"]


def test_what_python_reads_as_it_begins_needs_a_new_one(tmp_path: Path, hub: Any) -> None:  # noqa: F811
    assert not state(tmp_path, hub(), sys.executable, PYTHONUTF8="1")["begun"]


def in_a_new_python(code: str, folder: Path | None = None) -> str:
    text = f"""
import sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import singleuser
sys.path[0] = {str(folder or PROGRAM.parent)!r}
singleuser.import_server()
""" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_jupyterhub_singleuser_is_imported_without_the_hubs_database_and_pages() -> None:
    said = in_a_new_python("""
        print("jupyterhub.singleuser" in sys.modules, "jupyterhub.services.auth" in sys.modules)
        print(sorted({name.split(".")[0] for name in sys.modules} & {"sqlalchemy", "alembic"}))
        print(sorted(set(singleuser.HUB_MODULES) & set(sys.modules)))
    """)
    assert said == "True True\n[]\n[]\n"


def test_who_asks_for_these_later_gets_the_real_ones() -> None:
    said = in_a_new_python("""
        import jupyterhub.scopes, jupyterhub.log
        later = jupyterhub.scopes.orm
        import jupyterhub.orm, jupyterhub.handlers.pages, sqlalchemy.orm, sqlalchemy.exc
        print(later.User is jupyterhub.orm.User, jupyterhub.scopes.sa.inspect is sqlalchemy.inspect)
        print(jupyterhub.handlers.pages.HealthCheckHandler.__mro__[1].__name__)
        print(jupyterhub.scopes.roles.get_default_roles()[0]["name"])
        engine = sqlalchemy.create_engine("sqlite://")
        jupyterhub.orm.Base.metadata.create_all(engine)
        session = sqlalchemy.orm.Session(engine)
        session.add(later.User(name="alice"))
        session.commit()
        print(session.query(jupyterhub.orm.User).one().name)
        try:
            sqlalchemy.create_engine("nonsense")
        except sqlalchemy.exc.ArgumentError:
            print("refused")
    """)
    assert said == "True True\nBaseHandler\nuser\nalice\nrefused\n"


def test_another_release_of_jupyterhub_is_imported_as_ever(tmp_path: Path) -> None:
    package = tmp_path / "jupyterhub"
    (package / "handlers").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "orm.py").write_text("class Spawner: pass\n")
    (package / "handlers" / "__init__.py").write_text("")
    (package / "handlers" / "pages.py").write_text("class OtherHandler: pass\n")
    (package / "log.py").write_text("from .handlers.pages import OtherHandler\nfrom . import orm\nS = orm.Spawner\n")
    (package / "singleuser.py").write_text("from . import log\n")
    said = in_a_new_python(
        """
        from jupyterhub.singleuser import log
        print(log.OtherHandler.__module__, log.S.__module__, sys.modules["jupyterhub"].__file__)
        """,
        tmp_path,
    )
    assert said == f"jupyterhub.handlers.pages jupyterhub.orm {package / '__init__.py'}\n"
