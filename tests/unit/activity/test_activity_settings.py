"""Nodes reach the service by an address that follows from the hub's, and each session has a token of its own."""

from __future__ import annotations

import pytest
from traitlets import TraitError
from traitlets.config import Config

from carme_hub.activity.settings import CarmeActivity, service_url
from carme_hub.activity.tokens import ReporterTokens


@pytest.mark.parametrize(
    ("own", "public", "bind", "api", "url"),
    [
        ("", "", "http://:8000", "https://hub:8081/hub/api", "http://hub:8000/services/activity/"),
        (
            "",
            "",
            "https://:443/jupyter/",
            "https://hub:8081/jupyter/hub/api",
            "https://hub:443/jupyter/services/activity/",
        ),
        ("", "", "http://127.0.0.1:8000/", "http://[fd00::1]:8081/hub/api", "http://[fd00::1]:8000/services/activity/"),
        (
            "",
            "https://hub.example.org/lab/",
            "http://:8000/lab/",
            "x",
            "https://hub.example.org/lab/services/activity/",
        ),
        ("https://a.example.org/x", "https://b/", "http://:8000", "x", "https://a.example.org/x/"),
    ],
)
def test_the_address_of_the_service(own: str, public: str, bind: str, api: str, url: str) -> None:
    assert service_url(CarmeActivity(url=own), public, bind, api) == url


@pytest.mark.parametrize("url", ["hub.example.org", "ftp://hub/", "https:///services", "https://hub/?a=b"])
def test_an_address_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(TraitError, match="such as https://hub"):
        CarmeActivity(config=Config({"CarmeActivity": {"url": url}}))


def test_a_token_fits_its_session_alone() -> None:
    tokens = ReporterTokens("key")
    assert tokens.fits("one", tokens.token("one"))
    for wrong in (tokens.token("two"), "", tokens.token("one")[:-1], ReporterTokens("other").token("one"), "é"):
        assert not tokens.fits("one", wrong)
    assert "key" not in repr(tokens)


def test_a_command_before_the_end_is_a_program_by_its_whole_path() -> None:
    assert CarmeActivity(before_end=["/opt/save", "all"]).before_end == ["/opt/save", "all"]
    with pytest.raises(TraitError, match="give the absolute path of a program"):
        CarmeActivity(before_end=["save"])
