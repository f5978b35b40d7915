"""The form says of an image whether a session with it starts at once, or the image has to be fetched first."""

from __future__ import annotations

from collections.abc import Collection

from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.images.start_times import Fetching, fetching
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.spawners.form.form import Offer, live_answer, render_form
from carme_hub.spawners.form.image_starts import OfferedStarts

PROFILES = parse_profiles(
    [
        {"slug": "a100", "display_name": "A100", "default": True, "gpus": {"types": ["a100"], "max": 4, "default": 1}},
        {"slug": "cpu", "display_name": "CPU"},
    ]
)
NODES = [
    Node("n1", "idle", usable=True, cpus=8, memory_mib=65536, gpus={"a100": 4}),
    Node("n2", "idle", usable=True, cpus=8, memory_mib=65536),
]
IMAGES = {"base": "The usual one", "torch": ""}


def offer(held: dict[str, set[str]], seconds: dict[str, float] | None = None, *, copies: bool = True) -> Offer:
    """Return an offer on two nodes, of which ``held`` says which has which image."""

    def ask(image: str, nodes: Collection[str]) -> Fetching | None:
        return fetching(image, 4 << 30, nodes, held, (4 << 30) / 40) if copies else None

    starts = OfferedStarts(ask, seconds or {})
    return Offer(PROFILES, images=IMAGES, cluster=Cluster(NODES, seen=1.0), starts=starts)


def line(found: Offer, slug: str, **options: str) -> object:
    profiles = live_answer(found, {"profile": slug, **options}, 1.0)["profiles"]
    assert isinstance(profiles, dict)
    return profiles[slug]["image"]


def test_an_image_on_the_nodes_starts_at_once_and_another_is_fetched() -> None:
    found = offer({"base": {"n1"}})
    assert line(found, "a100") == "Image base: starts at once"
    assert line(found, "a100", image="torch") == "Image torch: about 40 s: has to be fetched"
    some = "Image base: starts at once on 1 of 2 nodes, elsewhere about 40 s: has to be fetched"
    assert line(found, "cpu") == some, "the node without a GPU has it not"


def test_the_list_of_images_says_it_without_a_script() -> None:
    html = " ".join(render_form(offer({"base": {"n1", "n2"}}), now=1.0).split())
    assert "base – The usual one</option>" in html.replace(" </option>", "</option>")
    assert "torch · about 40 s to fetch</option>" in html.replace(" </option>", "</option>")
    assert "Image base: starts at once" in html


def test_where_nodes_use_the_store_only_what_was_measured_is_said() -> None:
    assert line(offer({}, copies=False), "a100") == ""
    assert line(offer({}, {"base": 7.4}, copies=False), "a100") == "Image base: a start takes about 7 s here"
    both = line(offer({"base": {"n1"}}, {"base": 7.4}), "a100")
    assert both == "Image base: starts at once (a start takes about 7 s here)"


def test_a_site_without_a_catalogue_says_nothing() -> None:
    found = Offer(PROFILES, images=IMAGES, cluster=Cluster(NODES, seen=1.0))
    assert line(found, "a100") == ""
    assert 'carme-image text-body-secondary mb-0 d-none"' in render_form(found, now=1.0)
