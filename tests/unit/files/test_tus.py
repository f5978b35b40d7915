"""tus 1.0 with a real Jupyter server: what the protocol asks for, and what people would notice if it were otherwise."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import socket
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest
from files_server import TOKEN, Answered, Server
from tusclient import client

TUS = {"Tus-Resumable": "1.0.0"}
BODY = {**TUS, "Content-Type": "application/offset+octet-stream"}
UPLOADS = "/carme/uploads"


def coded(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else os.fsencode(text)).decode()


def metadata(**values: str | bytes) -> str:
    return ",".join(f"{name} {coded(value)}" for name, value in values.items())


def create(server: Server, folder: Path, name: str, length: int, **more: str | bytes) -> Answered:
    given = metadata(filename=name, folder=str(folder), **more)
    return server.ask("POST", UPLOADS, {**TUS, "Upload-Length": str(length), "Upload-Metadata": given})


def begun(server: Server, folder: Path, name: str, length: int, **more: str | bytes) -> str:
    answer = create(server, folder, name, length, **more)
    assert answer.status == 201, answer.text
    return answer.headers["location"]


def patch(server: Server, where: str, offset: int, body: bytes, **more: str) -> Answered:
    return server.ask("PATCH", where, {**BODY, "Upload-Offset": str(offset), **more}, body)


def head(server: Server, where: str) -> tuple[int, str]:
    answer = server.ask("HEAD", where, TUS)
    return answer.status, answer.headers.get("upload-offset", "")


def wait_for_offset(server: Server, where: str, offset: int) -> None:
    end = time.monotonic() + 10
    while head(server, where) != (200, str(offset)):
        assert time.monotonic() < end, head(server, where)
        time.sleep(0.02)


def left_behind(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if "carme-upload" in each.name]


def test_a_file_arrives_in_parts_and_is_there_only_when_it_is_complete(server: Server, folder: Path) -> None:
    where = begun(server, folder, "data.bin", 10)
    assert head(server, where) == (200, "0")
    first = patch(server, where, 0, b"01234")
    assert (first.status, first.headers["upload-offset"], first.headers["tus-resumable"]) == (204, "5", "1.0.0")
    assert "GMT" in first.headers["upload-expires"]
    assert not (folder / "data.bin").exists()
    answer = server.ask("HEAD", where, TUS)
    assert answer.headers["upload-length"] == "10"
    assert answer.headers["cache-control"] == "no-store"
    assert "filename ZGF0YS5iaW4=" in answer.headers["upload-metadata"]
    last = patch(server, where, 5, b"56789")
    assert (last.status, last.headers["upload-offset"]) == (204, "10")
    assert (folder / "data.bin").read_bytes() == b"0123456789"
    assert left_behind(folder) == []
    # A client that did not get the last answer asks, and does not begin again.
    assert head(server, where) == (200, "10")


def test_an_empty_file_is_there_at_once(server: Server, folder: Path) -> None:
    begun(server, folder, "empty", 0)
    assert (folder / "empty").read_bytes() == b""
    assert left_behind(folder) == []


def test_the_server_says_what_it_can_do(server: Server) -> None:
    answer = server.ask("OPTIONS", UPLOADS)
    assert answer.status == 204
    assert answer.headers["tus-version"] == "1.0.0"
    assert set(answer.headers["tus-extension"].split(",")) >= {"creation", "expiration", "checksum", "termination"}
    assert "sha1" in answer.headers["tus-checksum-algorithm"].split(",")


def test_an_upload_goes_on_where_it_broke_off(server: Server, folder: Path) -> None:
    content = os.urandom(3_000_000)
    where = begun(server, folder, "broken", len(content))
    lines = [f"PATCH {where} HTTP/1.1", "Host: localhost", f"Authorization: token {TOKEN}", "Tus-Resumable: 1.0.0"]
    lines += [f"Content-Length: {len(content)}", "Upload-Offset: 0", f"Content-Type: {BODY['Content-Type']}"]
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + content[:2_000_001])
        wait_for_offset(server, where, 2_000_001)
    wait_for_offset(server, where, 2_000_001)
    assert patch(server, where, 2_000_001, content[2_000_001:]).status == 204
    assert (folder / "broken").read_bytes() == content


def test_who_goes_on_does_not_wait_for_a_connection_that_is_silent(server: Server, folder: Path) -> None:
    where = begun(server, folder, "asleep", 100)
    lines = [f"PATCH {where} HTTP/1.1", "Host: localhost", f"Authorization: token {TOKEN}", "Tus-Resumable: 1.0.0"]
    lines += ["Content-Length: 100", "Upload-Offset: 0", f"Content-Type: {BODY['Content-Type']}"]
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + b"x" * 40)
        wait_for_offset(server, where, 40)  # what is in memory counts
        began = time.monotonic()
        assert patch(server, where, 40, b"y" * 60).status == 204
        assert time.monotonic() - began < 5
    assert (folder / "asleep").read_bytes() == b"x" * 40 + b"y" * 60


def test_a_part_that_begins_elsewhere_is_refused_and_changes_nothing(server: Server, folder: Path) -> None:
    where = begun(server, folder, "data", 10)
    assert patch(server, where, 0, b"abc").status == 204
    answer = patch(server, where, 0, b"abc")
    assert answer.status == 409
    assert "3 bytes have arrived" in answer.text
    assert patch(server, where, 3, b"x" * 8).status == 413
    assert head(server, where) == (200, "3")


def test_parts_follow_each_other_at_once_and_a_refusal_arrives_also_in_the_middle_of_a_large_body(
    server: Server, folder: Path
) -> None:
    part = os.urandom(1 << 16)
    where = begun(server, folder, "many", 300 * len(part))
    for number in range(50):
        assert patch(server, where, number * len(part), part).status == 204
    answer = patch(server, where, 5, b"x" * (6 << 20))
    assert (answer.status, "bytes have arrived" in answer.text) == (409, True)
    assert head(server, where) == (200, str(50 * len(part)))


def test_a_body_without_a_length_cannot_be_longer_than_the_file(server: Server, folder: Path) -> None:
    where = begun(server, folder, "data", 10)
    answer = server.ask("PATCH", where, {**BODY, "Upload-Offset": "0"}, iter([b"x" * 6, b"x" * 6]))
    assert answer.status in (400, 413)
    assert not (folder / "data").exists()
    status, offset = head(server, where)
    assert (status, int(offset) <= 10) == (200, True)


def test_a_part_with_the_wrong_checksum_is_thrown_away(server: Server, folder: Path) -> None:
    where = begun(server, folder, "sum", 6)
    digest = base64.b64encode(hashlib.sha1(b"abc").digest()).decode()
    bad = patch(server, where, 0, b"xyz", **{"Upload-Checksum": f"sha1 {digest}"})
    assert (bad.status, head(server, where)) == (460, (200, "0"))
    assert patch(server, where, 0, b"abc", **{"Upload-Checksum": f"sha1 {digest}"}).status == 204
    strange = patch(server, where, 3, b"def", **{"Upload-Checksum": "crc32 AAAA"})
    assert strange.status == 400
    digest = base64.b64encode(hashlib.sha256(b"def").digest()).decode()
    assert patch(server, where, 3, b"def", **{"Upload-Checksum": f"sha256 {digest}"}).status == 204
    assert (folder / "sum").read_bytes() == b"abcdef"


def test_an_upload_can_be_cancelled(server: Server, folder: Path) -> None:
    where = begun(server, folder, "gone", 10)
    patch(server, where, 0, b"abc")
    assert server.ask("DELETE", where, TUS).status == 204
    assert head(server, where)[0] == 404
    assert server.ask("DELETE", where, TUS).status == 404
    assert list(folder.iterdir()) == []


def test_an_upload_of_last_week_has_expired_and_is_removed_with_the_next_one(server: Server, folder: Path) -> None:
    where = begun(server, folder, "old", 10)
    [part] = [each for each in folder.iterdir() if each.suffix == ".carme-upload"]
    for each in folder.iterdir():
        os.utime(each, (time.time() - 8 * 86_400,) * 2)
    assert part.exists()
    assert head(server, where)[0] == 410
    begun(server, folder, "new", 10)
    assert not part.exists()
    assert len(left_behind(folder)) == 2


def test_a_file_that_is_there_is_replaced_only_on_request(server: Server, folder: Path) -> None:
    (folder / "mine").write_bytes(b"before")
    answer = create(server, folder, "mine", 3)
    assert answer.status == 409
    assert "mine is there already" in answer.text
    where = begun(server, folder, "mine", 3, overwrite="true")
    assert (folder / "mine").read_bytes() == b"before"
    assert patch(server, where, 0, b"new").status == 204
    assert (folder / "mine").read_bytes() == b"new"


def test_a_name_that_was_taken_meanwhile_gets_a_number_and_nothing_is_lost(server: Server, folder: Path) -> None:
    where = begun(server, folder, "photo.jpg", 3)
    (folder / "photo.jpg").write_bytes(b"of somebody else")
    answer = patch(server, where, 0, b"new")
    assert base64.b64decode(answer.headers["carme-file-name"]) == b"photo-2.jpg"
    assert (folder / "photo.jpg").read_bytes() == b"of somebody else"
    assert (folder / "photo-2.jpg").read_bytes() == b"new"


def test_the_folders_of_a_folder_are_made(server: Server, folder: Path) -> None:
    where = begun(server, folder, "ignored", 2, relativePath="album/2026/a b.jpg")
    assert patch(server, where, 0, b"ok").status == 204
    assert (folder / "album/2026/a b.jpg").read_bytes() == b"ok"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "x" * 256, "a\0b"])
def test_a_name_that_is_none_is_refused(server: Server, folder: Path, name: str) -> None:
    assert create(server, folder, name, 1).status == 400
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "a//b", "link/x", "a/b/" * 40 + "x"])
def test_a_relative_path_does_not_leave_the_folder(server: Server, folder: Path, path: str) -> None:
    (folder / "link").symlink_to("/tmp")
    answer = create(server, folder, "x", 1, relativePath=path)
    assert answer.status in (400, 404), answer.text


def test_a_name_may_have_any_bytes(server: Server, folder: Path) -> None:
    name = b"\xff\n <b>'\"$(x) "
    given = f"filename {coded(name)},folder {coded(str(folder))}"
    answer = server.ask("POST", UPLOADS, {**TUS, "Upload-Length": "1", "Upload-Metadata": given})
    assert patch(server, answer.headers["location"], 0, b"x").status == 204
    assert [os.fsencode(each.name) for each in folder.iterdir()] == [name]


def test_what_has_no_room_is_refused_before_it_is_sent(server: Server, folder: Path) -> None:
    answer = create(server, folder, "huge", 2**60)
    assert answer.status == 507
    assert "no space left" in answer.text
    assert list(folder.iterdir()) == []


def test_a_folder_that_may_not_be_written_or_is_none_is_said(server: Server, folder: Path) -> None:
    assert create(server, folder / "none", "x", 1).status == 404
    (folder / "file").write_text("")
    assert create(server, folder / "file", "x", 1).status == 404
    assert create(server, Path("/proc"), "x", 1).status in (403, 404, 507)


def test_a_part_that_somebody_has_exchanged_for_a_link_is_not_written(server: Server, folder: Path) -> None:
    (folder / "precious").write_bytes(b"")
    where = begun(server, folder, "x", 5)
    [part] = [each for each in folder.iterdir() if each.suffix == ".carme-upload"]
    part.unlink()
    part.symlink_to(folder / "precious")
    assert patch(server, where, 0, b"bytes").status == 404
    assert (folder / "precious").read_bytes() == b""


def test_strangers_and_other_sites_upload_nothing(server: Server, folder: Path) -> None:
    given = {**TUS, "Upload-Length": "1", "Upload-Metadata": metadata(filename="x", folder=str(folder))}
    assert server.ask("POST", UPLOADS, given, token="").status in (302, 403)
    assert server.ask("POST", UPLOADS, given, token="wrong").status in (302, 403)
    where = begun(server, folder, "x", 1)
    assert server.ask("PATCH", where, {**BODY, "Upload-Offset": "0"}, b"x", token="").status in (302, 403)
    assert server.ask("DELETE", where, TUS, token="").status in (302, 403)
    assert not (folder / "x").exists()


def test_another_version_and_another_content_are_refused(server: Server, folder: Path) -> None:
    where = begun(server, folder, "x", 1)
    answer = server.ask("PATCH", where, {**BODY, "Tus-Resumable": "0.2.2", "Upload-Offset": "0"}, b"x")
    assert (answer.status, answer.headers["tus-version"]) == (412, "1.0.0")
    assert server.ask("PATCH", where, {**TUS, "Upload-Offset": "0"}, b"x").status == 415
    for number in ("", "-1", "x", "1" * 30):
        assert server.ask("PATCH", where, {**BODY, "Upload-Offset": number}, b"x").status == 400
    assert server.ask("POST", UPLOADS, {**TUS, "Upload-Length": "1", "Upload-Metadata": "a b c"}).status == 400


def test_the_first_part_may_come_with_the_beginning_and_methods_by_a_header(server: Server, folder: Path) -> None:
    given = {"Upload-Length": "6", "Upload-Metadata": metadata(filename="both", folder=str(folder))}
    answer = server.ask("POST", UPLOADS, {**BODY, **given}, b"abc")
    assert (answer.status, answer.headers["upload-offset"]) == (201, "3")
    where = answer.headers["location"]
    more = server.ask("POST", where, {**BODY, "Upload-Offset": "3", "X-HTTP-Method-Override": "PATCH"}, b"def")
    assert more.status == 204
    assert (folder / "both").read_bytes() == b"abcdef"


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_a_foreign_client_uploads_and_resumes(server: Server, folder: Path, size: int) -> None:
    content = os.urandom(size)
    source, metadata = io.BytesIO(content), {"filename": "from-tuspy", "folder": str(folder)}
    tus = client.TusClient(f"http://127.0.0.1:{server.port}{UPLOADS}", headers={"Authorization": f"token {TOKEN}"})
    if size > 2:
        first = tus.uploader(file_stream=source, chunk_size=1_000_000, metadata=metadata, upload_checksum=True)
        first.upload(stop_at=2_000_000)
        again = tus.uploader(file_stream=source, chunk_size=1_500_000, metadata=metadata, url=first.url)
        assert again.offset == 2_000_000
        again.upload()
    else:
        tus.uploader(file_stream=source, chunk_size=1_000_000, metadata=metadata).upload()
    assert (folder / "from-tuspy").read_bytes() == content
    assert left_behind(folder) == []


def test_another_site_cannot_upload_in_the_name_of_who_has_a_cookie(server: Server, folder: Path) -> None:
    first = HTTPConnection("127.0.0.1", server.port, timeout=30)
    first.request("GET", f"/carme/files?token={TOKEN}")
    answer = first.getresponse()
    answer.read()
    cookies = [each.partition(";")[0] for each in answer.msg.get_all("Set-Cookie") or ()]
    first.close()
    xsrf = next(each.partition("=")[2] for each in cookies if each.startswith("_xsrf="))
    given = {**TUS, "Upload-Length": "0", "Upload-Metadata": metadata(filename="x", folder=str(folder))}
    forged = server.ask("POST", UPLOADS, {**given, "Cookie": "; ".join(cookies)}, token="")
    assert (forged.status, list(folder.iterdir())) == (403, [])
    own = server.ask("POST", UPLOADS, {**given, "Cookie": "; ".join(cookies), "X-XSRFToken": xsrf}, token="")
    assert (own.status, (folder / "x").exists()) == (201, True)
    method = {**TUS, "Cookie": "; ".join(cookies), "X-HTTP-Method-Override": "DELETE"}
    assert server.ask("POST", begun(server, folder, "y", 5), method, token="").status == 403
    assert len(left_behind(folder)) == 2
