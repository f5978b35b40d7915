"""Answers: completed from facts, asked where nobody knows them; of a wrong one it is said what to write instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forged_setup import GIVEN, facts, with_runtimes

from carme_hub.cli.setup.answers import AnswersWrong, complete, from_document, typed
from carme_hub.cli.setup.questions import QUESTIONS, Question


def test_what_slurm_and_the_machine_say_is_not_asked() -> None:
    found = typed(complete(GIVEN, facts()))
    assert (found.cluster, found.hub_address, found.submit_via) == ("ada", "10.0.0.1", "sudo")
    assert found.partitions == ("cpu", "gpu"), "a hidden partition is not offered by itself"
    assert (found.site, found.state_folder, found.hub_port, found.quotas) == (
        *("carme-hub", "/var/lib/carme-hub", 8081),
        False,
    )


def test_all_that_is_missing_is_listed_at_once() -> None:
    with pytest.raises(AnswersWrong) as error:
        complete({"web_server": "nginx"}, replace(facts(), addresses=()))
    lines = str(error.value).splitlines()
    assert lines[0] == "These answers are missing:"
    names = [line.split(":")[0].strip() for line in lines[1:-1]]
    assert names == ["tls_certificate", "tls_key", "hub_address", "group", "image", "container_runtime"]
    assert "--answers FILE" in lines[-1]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("partitions", "gpux", "there is no partition 'gpux'. Did you mean gpu? There are: all, cpu, gpu"),
        ("site", "my hub", "systemd and sudo take letters"),
        ("site", "hub.service", "systemd and sudo take letters"),
        ("site", "2hub", "a letter first"),
        ("public_port", "8081", "8081: hub_port is that port already"),
        ("hub_user", "Hub", "lower-case letters"),
        ("hub_user", "root", "a hub that is root can do everything"),
        ("test_user", "J.Doe@site", ""),
        ("test_user", "-x", "letters, digits and . _ @ -"),
        ("state_folder", "/etc/hub", "in a folder of the system"),
        ("state_folder", "/tmp/hub", "in a folder of the system"),
        ("state_folder", "/var/lib", "not the hub's alone"),
        ("libexec", "/var/lib/carme-hub/libexec", "helpers are for root alone to write"),
        ("libexec", "/var/lib/carme-hub", "helpers are for root alone to write"),
        ("image_store", "/var/lib/carme-hub/images", "name a folder of root's"),
        ("image_store", "/var/lib", "name a folder of root's"),
        ("folders", "/var/lib/carme-hub/folders", "name a folder of root's"),
        ("image_store", "/srv/images", ""),
        ("image", "/srv/images/lab/image.sqsh", ""),
        ("services_port", "8079", "8081: hub_port is that port already"),
        ("services_port", "65534", "from 1024 to 65535"),
        ("group", "domain users", "quoted in sudoers"),
        ("group", "a,ALL", "quoted in sudoers"),
        ("host", "https://hub", "write the name of a machine"),
        ("hub_address", "0.0.0.0", "stands for every address"),
        ("hub_address", "no where", "neither an address nor the name"),
        ("hub_port", "80", "from 1024 to 65535"),
        ("image", "images/x", "absolute path"),
        ("image", "/opt/../etc", "absolute path"),
        ("state_folder", "/var/lib/a b", "absolute path"),
        ("container_runtime", "aptainer", "Did you mean apptainer?"),
        ("container_runtime", "bubblewrap", ""),
        ("submit_via", "direct", "write one of sudo, rest"),
        ("memory_max", "4 GB", "such as 4G"),
        ("quotas", "perhaps", "write yes or no"),
        ("web_server", "apache", "write one of nginx, caddy, none"),
    ],
)
def test_a_wrong_answer_is_said_with_what_to_write(name: str, text: str, says: str) -> None:
    given = {**GIVEN, name: text}
    if not says:
        assert complete(given, facts())[name] == text
        return
    with pytest.raises(AnswersWrong) as error:
        complete(given, facts())
    assert f"  {name}: " in str(error.value)
    assert says in str(error.value)


def test_a_group_and_a_user_that_the_machine_does_not_have_are_named() -> None:
    here = replace(facts(), users=frozenset({"carme-hub"}), groups=frozenset({"hub-admins"}))
    with pytest.raises(AnswersWrong, match=r"group: there is no group 'gpu-users' .*getent group gpu-users"):
        complete(GIVEN, here)
    with pytest.raises(AnswersWrong, match="hub_user: there is no user 'carme-hub'"):
        complete(GIVEN, replace(here, users=frozenset()))


def test_the_test_user_is_one_whose_sessions_start() -> None:
    here = replace(facts(), users={"alice", "pierre", "carme-hub"}, members={("alice", "gpu-users")})
    assert complete({**GIVEN, "test_user": "alice"}, here)["test_user"] == "alice"
    with pytest.raises(AnswersWrong, match="test_user: pierre is not in the group gpu-users"):
        complete({**GIVEN, "test_user": "pierre"}, here)


def test_a_unit_does_not_get_a_group_that_is_not_there() -> None:
    here = replace(facts(), groups={"gpu-users", "hub-admins"})
    assert complete(GIVEN, here)["local_passwords"] == "no"
    with pytest.raises(AnswersWrong, match="local_passwords: there is no group 'shadow'"):
        complete({**GIVEN, "local_passwords": "yes"}, here)


def test_ports_of_another_hub_here_are_left_to_it() -> None:
    beside = replace(facts(), ports={8081: "hub_port of the hub one", 10103: "services_port of the hub one"})
    found = complete(GIVEN, beside)
    assert (found["hub_port"], found["public_port"], found["services_port"]) == ("9081", "8000", "11102")
    with pytest.raises(AnswersWrong, match="8081: hub_port of the hub one is that port already"):
        complete({**GIVEN, "hub_port": "8081"}, beside)


def test_a_port_that_an_answer_takes_is_no_other_answers_default() -> None:
    found = complete({**GIVEN, "services_port": "10103"}, facts())
    assert (found["images_port"], found["folders_port"]) == ("11105", "10106")


def test_nodes_fetch_images_to_their_own_disks_and_only_those_of_a_store() -> None:
    of_nodes = {**GIVEN, "node_images": "/var/lib/carme-images"}
    assert complete(of_nodes, facts())["node_images"] == "", "there is no store"
    assert complete({**of_nodes, "image_store": "/srv/images"}, facts())["node_images"] == "/var/lib/carme-images"
    with pytest.raises(AnswersWrong, match="node_images: /srv/images/here: that is the store"):
        complete({**GIVEN, "image_store": "/srv/images", "node_images": "/srv/images/here"}, facts())


def test_the_way_to_submit_is_what_the_site_has() -> None:
    with pytest.raises(AnswersWrong, match="apt install sudo"):
        complete({**GIVEN, "submit_via": "sudo"}, replace(facts(), sudo=""))
    with pytest.raises(AnswersWrong, match="AuthAltTypes=auth/jwt"):
        complete({**GIVEN, "submit_via": "rest", "rest_url": "http://localhost:6820"}, replace(facts(), jwt_key=""))
    with pytest.raises(AnswersWrong, match="rest_url: Address of slurmrestd"):
        complete({**GIVEN, "submit_via": "rest"}, facts())


def test_the_runtime_is_one_that_all_nodes_have_and_that_runs_the_image() -> None:
    given = {name: text for name, text in GIVEN.items() if name != "container_runtime"}
    both = with_runtimes(cpu=("podman", "apptainer"), gpu=("apptainer", "enroot"))
    assert complete(given, both)["container_runtime"] == "apptainer"
    apart = with_runtimes(cpu=("podman",), gpu=("enroot",))
    with pytest.raises(AnswersWrong, match="container_runtime"):
        complete(given, apart)
    with pytest.raises(AnswersWrong, match="podman is not on the nodes of gpu"):
        complete({**given, "container_runtime": "podman"}, apart)
    with pytest.raises(AnswersWrong, match="bubblewrap does not run images of the format sif; these do: apptainer"):
        complete({**given, "container_runtime": "bubblewrap", "image": "/opt/x.sif"}, facts())
    host = replace(
        with_runtimes(cpu=("bubblewrap", "apptainer"), gpu=("bubblewrap", "apptainer")), image={"base": "host"}
    )
    assert complete(given, host)["container_runtime"] == "bubblewrap", "an image with the node's /usr runs nowhere else"


def test_a_person_is_asked_what_nobody_knows_and_again_after_a_wrong_answer() -> None:
    asked: list[tuple[str, str]] = []
    said = {"group": ["no such", "gpu-users"], "image": ["/opt/images/pytorch"], "container_runtime": ["apptainer"]}

    def ask(question: Question, default: str, wrong: str) -> str:
        asked.append((question.name, wrong))
        return said[question.name].pop(0) if said.get(question.name) else default

    found = complete({"web_server": "none"}, facts(), ask)
    assert (found["group"], found["image"], found["host"]) == ("gpu-users", "/opt/images/pytorch", "hub1.example.org")
    names = [name for name, _ in asked]
    assert names.count("group") == 2
    assert "quoted in sudoers" in asked[names.index("group") + 1][1]
    assert {"web_server", "tls_key", "hub_port", "cluster"}.isdisjoint(names)


def test_a_file_of_answers_has_texts_numbers_lists_yes_and_no() -> None:
    document = {"partitions": ["cpu", "gpu"], "hub_port": 9000, "quotas": True, "activity": False, "admin_group": None}
    assert from_document(document, "site.yaml") == {
        "partitions": "cpu,gpu",
        "hub_port": "9000",
        "quotas": "yes",
        "activity": "no",
        "admin_group": "",
    }
    assert from_document(None, "site.yaml") == {}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (["group"], "write one answer a line"),
        ({"gruop": "x"}, "there is no answer 'gruop'. Did you mean group?"),
        ({"group": {"name": "x"}}, "is neither a text, a number"),
        ({"partitions": [["a"], {}]}, "is neither a text, a number"),
    ],
)
def test_a_file_of_answers_that_is_wrong_is_refused(document: object, says: str) -> None:
    with pytest.raises(AnswersWrong, match=r"site\.yaml") as error:
        from_document(document, "site.yaml")
    assert says in str(error.value)


def test_every_question_ends_as_a_sentence_and_has_a_name_of_its_own() -> None:
    assert all(each.text.endswith(".") for each in QUESTIONS)
    assert len({each.name for each in QUESTIONS}) == len(QUESTIONS)
