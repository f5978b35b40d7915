"""What the new file keeps of the old one's code is whole, is nothing else, and what it does not keep is said."""

from __future__ import annotations

import ast

import pytest

from carme_hub.cli.convert.convert import convert_config
from carme_hub.cli.convert.findings import Finding, Level
from carme_hub.cli.convert.site import Site
from carme_hub.cli.convert.writing import write


def converted(text: str) -> Site:
    return convert_config(text, "old.py")


def written(text: str) -> str:
    new = write(converted(text), "/state")
    ast.parse(new)
    return new


def looks(site: Site) -> dict[str, Finding]:
    return {finding.setting: finding for finding in site.findings if finding.level is Level.LOOK and finding.line}


@pytest.mark.parametrize("end", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_what_ends_a_line_elsewhere_and_not_in_python_moves_no_code(end: str) -> None:
    text = f"# Login{end}\nimport os\n# {end} TLS\nc.JupyterHub.ssl_key = os.environ['KEY']\n"
    text += "c.JupyterHub.reset_db = True\n"
    new = written(text)
    assert "c.JupyterHub.ssl_key = os.environ['KEY']" in new
    assert "import os" in new
    assert "reset_db" not in new
    site = converted(f"X = 1  # {end}\nfrom batchspawner import SlurmSpawner\nclass A(SlurmSpawner):\n    pass\n")
    assert {f.setting: f.line for f in site.findings if f.line} == {"import batchspawner": 2, "class A": 3}


def test_a_script_with_a_form_feed_has_its_own_lines() -> None:
    script = "#!/bin/bash\n# part 1\f\nmodule load cuda\n"
    site = converted(f'c.SlurmSpawner.batch_script = """{script}"""\n')
    assert looks(site)["module load cuda"].line == 3


def test_a_function_keeps_its_decorators() -> None:
    text = "from tornado import gen\n@gen.coroutine\ndef hook(spawner):\n    yield\nc.Spawner.pre_spawn_hook = hook\n"
    new = written(text)
    assert "from tornado import gen\n" in new
    assert "@gen.coroutine\ndef hook(spawner):\n    yield\n" in new


def test_of_several_statements_on_a_line_only_those_that_are_kept_are_there() -> None:
    text = "import os; import batchspawner  # both\nc.JupyterHub.ssl_key = os.sep; c.JupyterHub.reset_db = True\n"
    new = written(text)
    assert "import os\n" in new
    assert "batchspawner" not in new.partition('"""\n\n')[2]
    assert "c.JupyterHub.ssl_key = os.sep\n" in new
    assert "reset_db" not in new
    text = "import os\nif os.getpid(): c.JupyterHub.reset_db = True; c.JupyterHub.port = 9000\n"
    assert "if os.getpid(): pass; c.JupyterHub.port = 9000\n" in written(text)


def test_a_comment_behind_a_kept_setting_stays() -> None:
    assert "c.JupyterHub.port = 9000  # free\n" in written("c.JupyterHub.port = 9000  # free\n")


@pytest.mark.parametrize(
    "text",
    [
        "if USE:\n    c.JupyterHub.authenticator_class = Login\n",
        "for kind in [Login]:\n    c.JupyterHub.authenticator_class = kind\n",
    ],
)
def test_a_class_in_a_followed_block_stays_code(text: str) -> None:
    new = written(f"from oauthenticator.github import GitHubOAuthenticator as Login\nUSE = True\n{text}")
    assert "Imported(" not in new
    assert "import GitHubOAuthenticator as Login" in new
    assert "c.CarmeAuthenticator.authenticator_class = " in new


def test_a_followed_loop_whose_code_is_kept_does_nothing_twice() -> None:
    text = "import a, b\nfor app in [a.X, b.X]:\n    c.JupyterHub.extra_handlers.append(app)\n"
    assert written(text).count("c.JupyterHub.extra_handlers.append(app)") == 1


def test_a_value_that_is_no_constant_becomes_a_todo() -> None:
    site = converted("import os\nc.SlurmSpawner.req_homedir = os.sep\nc.SlurmSpawner.req_partition = 'cpu'\n")
    assert "no constant" in looks(site)["SlurmSpawner.req_homedir"].sentence
    assert "Imported(" not in write(site, "/state")


@pytest.mark.parametrize("value", ["'soon'", "[1]", "None", "'nan'"])
def test_an_interval_that_is_no_number_is_said(value: str) -> None:
    site = converted(f"c.SlurmSpawner.startup_poll_interval = {value}\n")
    assert "fast_interval" in looks(site)["SlurmSpawner.startup_poll_interval"].sentence
    assert "fast_interval" not in site.slurm


def test_statements_that_do_something_besides_settings_are_said_and_shown() -> None:
    text = """
import os, sys
sys.path.insert(0, "/opt/site")
os.environ["SITE_TOKEN"] = "hush"
if not os.path.isdir("/srv/hub"):
    os.makedirs("/srv/hub")
names = {}
names["a"] = 1
many = []
many.append("b")
many.extend(["c"])
def unused():
    print("not now")
load_subconfig("more.py")
c.JupyterHub.port = 9000
"""
    site = converted(text)
    said = {name: finding.line for name, finding in looks(site).items()}
    assert said == {
        "sys.path.insert()": 3,
        "os.environ['SITE_TOKEN']": 4,
        "a statement with if": 5,
        "load_subconfig": 14,
    }
    assert "hush" not in " ".join(finding.text() for finding in site.findings)
    new = write(site, "/state")
    assert '#     sys.path.insert(0, "/opt/site")' in new
    assert '#         os.makedirs("/srv/hub")' in new


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("c.JupyterHub.ip, c.JupyterHub.port = '10.0.0.1', 8000", "(c.JupyterHub.ip, c.JupyterHub.port)", 1),
        ("[a, *c.JupyterHub.services] = found", "[a, *c.JupyterHub.services]", 1),
        ("c['JupyterHub']['ip'] = '10.0.0.1'", "c['JupyterHub']['ip']", 1),
        ("c = get_config()\nc.update({'JupyterHub': {'ip': '10.0.0.1'}})", "c.update()", 2),
        ("done = set_all(c)", "done", 1),
        ("done: bool = set_all(config=c)", "done", 1),
        ("del c['JupyterHub']", "a statement with delete", 1),
        ("for n in ['a']:\n    c.JupyterHub.port = 9000\n    os.makedirs(n)", "os.makedirs()", 3),
        ("if os.environ:\n    c.SlurmSpawner.req_qos = 'a'\n    os.umask(0)", "os.umask()", 3),
        ("try:\n    c.SlurmSpawner.req_qos = 'a'\nexcept OSError:\n    os.umask(0)", "os.umask()", 4),
    ],
)
def test_no_way_to_set_something_is_passed_over_in_silence(text: str, said: str, line: int) -> None:
    site = converted(f"{text}\nc.JupyterHub.admin_users = {{'ada'}}\n")
    assert looks(site)[said].line == line
    shown = text.splitlines()[line - 1].strip()
    assert shown in write(site, "/state").partition("Left to do")[2]


@pytest.mark.parametrize(
    ("chain", "kept"),
    [
        ("c.JupyterHub.hub_ip = c.Spawner.ip = '10.0.0.1'", "c.JupyterHub.hub_ip = '10.0.0.1'"),
        ("c.Spawner.ip = c.Spawner.port = c.JupyterHub.hub_ip = '10.0.0.1'", "c.JupyterHub.hub_ip = '10.0.0.1'"),
        (
            "if os.path.exists('/a'):\n    c.Spawner.ip = c.JupyterHub.hub_ip = x = \\\n        '10.0.0.1'",
            "    c.JupyterHub.hub_ip = x = \\\n        '10.0.0.1'",
        ),
    ],
)
def test_of_a_chain_of_settings_only_those_that_are_kept_are_there(chain: str, kept: str) -> None:
    new = written(f"import os\n{chain}\n")
    assert kept in new
    assert "c.Spawner.ip" not in new
    assert "c.Spawner.port" not in new


def test_a_setting_that_is_deleted_again_is_deleted_in_the_new_file_too() -> None:
    new = written("c.JupyterHub.template_vars = {'a': 1}\ndel c.JupyterHub.template_vars\n")
    assert new.index("template_vars = {'a': 1}") < new.index("del c.JupyterHub.template_vars")


def test_names_that_a_module_gives_all_at_once_come_with_its_import() -> None:
    new = written("from site_names import *\nc.JupyterHub.ip = HUB_IP\n")
    assert new.index("from site_names import *") < new.index("c.JupyterHub.ip = HUB_IP")
    assert "site_names" not in written("from site_names import *\nc.JupyterHub.ip = '10.0.0.1'\n")


def test_a_statement_that_kept_code_needs_is_kept_and_not_said() -> None:
    text = "names = {}\nfor n in open('/etc/names'):\n    names[n] = 1\nc.Authenticator.allowed_users = names\n"
    assert not [name for name in looks(converted(text)) if "statement" in name]
    assert "for n in open('/etc/names'):\n    names[n] = 1\n" in written(text)


def test_of_a_condition_on_another_module_both_ways_stay() -> None:
    text = """
from site_settings import OIDC
if OIDC:
    c.JupyterHub.authenticator_class = "generic-oauth"
else:
    c.JupyterHub.authenticator_class = "pam"
"""
    new = written(text)
    assert "from site_settings import OIDC\nif OIDC:\n" in new
    assert 'authenticator_class = "generic-oauth"' in new
    assert 'authenticator_class = "pam"' in new
