"""The page Files: folders and what is in them, whatever it is called; and the script's uploads, in Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from files_server import TOKEN, Server
from rig.javascript import NODE

from carme_hub.files.listing import MOST_ENTRIES, size_text
from carme_hub.files.places import quoted
from carme_hub.paths import share_folder

MODULE = share_folder().parent / "jupyter/labextensions/carme-hub/static/files-tus.js"


def page(server: Server, path: Path, more: str = "") -> str:
    answer = server.ask("GET", f"/carme/files?path={quoted(path)}{more}")
    assert answer.status == 200, answer.text
    return answer.text


def test_a_folder_is_shown_with_links_to_what_is_in_it(server: Server, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "data.csv").write_bytes(b"x" * 2048)
    (folder / "gone").symlink_to("nowhere")
    text = page(server, folder)
    assert f'path={quoted(folder / "sub")}">sub</a>/' in text
    assert f'path={quoted(folder / "data.csv")}" download>data.csv</a>' in text
    assert "2.0 KiB" in text
    assert "3 entries" in text
    assert "are free on this file system" in text


def test_names_are_text_and_never_page(server: Server, folder: Path) -> None:
    (folder / "<img src=x onerror=y>").write_bytes(b"")
    (folder / "\udcff\n").write_bytes(b"x")
    text = page(server, folder)
    assert "<img src" not in text
    assert "&lt;img src=x onerror=y&gt;" in text
    assert "%FF%0A" in text
    answer = server.ask("GET", f"/carme/files/file?path={quoted(folder)}/%FF%0A")
    assert answer.body == b"x"


def test_a_long_folder_has_pages(server: Server, folder: Path) -> None:
    for number in range(MOST_ENTRIES + 3):
        (folder / f"{number:04}").touch()
    first, second = page(server, folder), page(server, folder, f"&from={MOST_ENTRIES}")
    assert f"from={MOST_ENTRIES}" in first
    assert ">0000<" in first
    assert ">0000<" not in second
    assert f"{MOST_ENTRIES + 1} to {MOST_ENTRIES + 3} of {MOST_ENTRIES + 3}" in second


def test_what_cannot_be_shown_is_said(server: Server) -> None:
    answer = server.ask("GET", "/carme/files?path=/nowhere%0A")
    assert (answer.status, answer.headers["content-type"]) == (404, "text/plain; charset=utf-8")
    assert "does not exist" in answer.text
    assert server.ask("GET", "/carme/files?path=a%00b").status == 400
    assert server.ask("GET", "/carme/files", token="").status in (302, 403)


def test_the_page_lets_no_script_of_others_in(server: Server, folder: Path) -> None:
    answer = server.ask("GET", f"/carme/files?path={quoted(folder)}")
    assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
    (folder / "evil.html").write_text("<script>1</script>")
    one = server.ask("GET", f"/carme/files/file?path={quoted(folder / 'evil.html')}")
    assert one.headers["content-type"] == "application/octet-stream"
    assert one.headers["content-disposition"].startswith("attachment")
    assert one.headers["x-content-type-options"] == "nosniff"


def run_client(server: Server, folder: Path, code: str) -> Any:
    """Run the page's client; ``upload(bytes, options)`` makes one, ``store`` is its storage."""
    script = f"""
import * as m from {json.dumps(MODULE.as_uri())};
const base = "http://127.0.0.1:{server.port}";
const kept = {{}};
const store = {{
  getItem: k => kept[k] ?? null, setItem: (k, v) => {{ kept[k] = v; }}, removeItem: k => {{ delete kept[k]; }},
}};
const go = (url, options) => fetch(new URL(url, base), options);
function upload(size, options = {{}}) {{
  const file = new File([new Uint8Array(size).fill(7)], "from-the-page", {{lastModified: 1}});
  const values = {{filename: file.name, folder: {json.dumps(str(folder))}}};
  return new m.TusUpload(file, "/carme/uploads", values, {{
    fetch: go, storage: store, key: "key", headers: () => ({{Authorization: "token {TOKEN}"}}),
    wait: async () => {{}}, ...options,
  }});
}}
let out;
{code};
console.log(JSON.stringify(out));
"""
    argv = [str(NODE), "--no-warnings", "--input-type=module", "-e", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_page_uploads_in_chunks_with_checksums_and_forgets(server: Server, folder: Path) -> None:
    code = """
const digest = async (bytes) => Buffer.from(await crypto.subtle.digest("SHA-256", bytes)).toString("base64");
const seen = [];
const name = await upload(m.CHUNK + 5, {sha256: digest, report: (offset) => seen.push(offset)}).run();
out = [name, seen, Object.keys(kept)]
"""
    chunk = 32 << 20
    assert run_client(server, folder, code) == ["from-the-page", [0, chunk, chunk + 5], []]
    assert (folder / "from-the-page").stat().st_size == chunk + 5


def test_the_page_goes_on_after_a_pause_and_after_lost_answers(server: Server, folder: Path) -> None:
    code = """
let calls = 0;
const first = upload(m.CHUNK * 2, {fetch: async (url, options) => {
  const answer = await go(url, options);
  if (options.method === "PATCH") { calls += 1; first.pause(); }
  return answer;
}});
const paused = await first.run().catch((error) => error.message);
let lost = 0;
const name = await upload(m.CHUNK * 2, {fetch: async (url, options) => {
  const answer = await go(url, options);
  if (options.method === "PATCH" && !lost) { lost += 1; throw new TypeError("the connection is lost"); }
  return answer;
}}).run();
out = [paused, calls, lost, name]
"""
    assert run_client(server, folder, code) == ["Paused.", 1, 1, ""]
    assert (folder / "from-the-page").stat().st_size == 64 << 20


def test_the_page_says_what_the_server_says_and_tries_no_more(server: Server, folder: Path) -> None:
    (folder / "from-the-page").touch()
    said = run_client(server, folder, "out = await upload(3).run().catch((error) => [error.status, error.message])")
    assert said[0] == 409
    assert "is there already" in said[1]


def test_an_upload_that_is_forgotten_on_the_server_begins_again(server: Server, folder: Path) -> None:
    code = """
const other = upload(10); await other.create();
await go(other.location, {method: "DELETE", headers: {Authorization: "token %s", "Tus-Resumable": "1.0.0"}});
out = await upload(10).run()
"""
    assert run_client(server, folder, code % TOKEN) == "from-the-page"


def test_a_folder_whose_name_is_no_text_takes_uploads_from_the_page(server: Server, folder: Path) -> None:
    odd = folder / "\udcff%41"
    odd.mkdir()
    code = f"const up = upload(3); up.values.folder = m.bytesOf({json.dumps(quoted(odd))}); out = await up.run()"
    assert run_client(server, folder, code) == "from-the-page"
    assert (odd / "from-the-page").stat().st_size == 3


def test_sizes_are_said_in_the_unit_that_fits() -> None:
    assert [size_text(n) for n in (0, 1023, 1536, 10 * 1024**3)] == ["0 B", "1023 B", "1.5 KiB", "10 GiB"]
