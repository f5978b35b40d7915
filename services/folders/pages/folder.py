"""The page of one folder: what it is, who is in it, which sessions have it; and its forms."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tornado.web import HTTPError

from carme_hub.domain.folders.folder import MemberState, SubjectKind
from carme_hub.domain.folders.jobs import JobKind
from carme_hub.domain.folders.rules import require_manager
from carme_hub.services.folders.pages.base import FolderPage, day
from carme_hub.services.folders.pages.looks import clock, looks
from carme_hub.services.folders.rest.looks import job_sentence
from carme_hub.services.pages import BadForm

NAME = r"([a-z0-9][a-z0-9._-]{1,62})"
_LIVE = ("pending", "open", "accepted")
_STATES = {
    "pending": "has not answered yet",
    "open": "each of them answers alone",
    "accepted": "member",
    "declined": "declined",
    "left": "left",
    "expired": "ended by itself",
    "revoked": "access ended",
}
_ACTS = {
    "created": "made it",
    "described": "changed what is said of it:",
    "invited": "invited",
    "accepted": "accepted",
    "declined": "declined",
    "left": "left",
    "revoked": "ended access of",
    "ended": "ended:",
    "handover-offered": "offered it to",
    "handover-declined": "did not want it",
    "handed-over": "took it over",
    "verified": "compared it with its checksums:",
    "applied-again": "had all rights applied again",
    "deleted": "deleted it",
}


class FolderHandler(FolderPage):
    """One folder."""

    async def get(self, name: str) -> None:
        """Show it."""
        found = await self.service.folders.one(name, self.actor)
        row = self.row(found)
        sessions, events = [], []
        if row["managed"]:
            sessions = await self.service.sessions.of(found)
            events = await self.service.folders.events(found.folder.id)
        members = [
            {**one, "words": _STATES[one["state"]], "until": day(one["expires"]), "live": one["state"] in _LIVE}
            for one in row["members"]
            if one["kind"] != "dataset"
        ]
        self.show(
            "folder.html",
            heading=row["name"],
            row=row,
            members=sorted(members, key=lambda one: (not one["live"], one["kind"], one["subject"])),
            heirs=[one["subject"] for one in members if one["state"] == "accepted" and one["subject"] != row["owner"]],
            sessions=[
                {
                    "user": one.user,
                    "name": one.server_name,
                    "mode": one.mode,
                    "lost": one.lost,
                    "job": one.job,
                    "since": clock(one.created),
                }
                for one in sessions
            ],
            may_end=self.service.sessions.consent and any(one.lost and not one.job for one in sessions),
            events=[
                {"at": clock(one.at), "actor": one.actor, "words": _ACTS.get(one.act, one.act), "about": one.about}
                for one in events
            ],
            looks=await looks(self.service, found, self.actor),
            is_kept=any(one["kind"] == "dataset" and one["state"] == "accepted" for one in row["members"]),
        )


class ActHandler(FolderPage):
    """The forms of a folder: POST ``folder/NAME/ACT``."""

    async def post(self, name: str, act: str) -> None:
        """Do it, and go back to the folder, or to the list where it is no longer the visitor's."""
        function = getattr(self, f"do_{act.replace('-', '_')}", None)
        if function is None:
            raise HTTPError(404, log_message="There is no such form.")
        said = await function(name)
        if said is not None:
            self.log_write("%s of folder %s", act, name)
            self.done(said, "" if act in ("leave", "decline", "delete") else f"folder/{name}")

    async def do_invite(self, name: str) -> str:
        """Invite somebody, or change an invitation."""
        kind, role = self.get_body_argument("kind", "user"), self.get_body_argument("role", "ro")
        if kind not in ("user", "group", "account"):
            raise BadForm("Choose a user, a group or an account.")
        subject = self.text("subject", "Who is invited", max_length=255)
        await self._folders.invite(name, self.actor, SubjectKind(kind), subject, role, self._until())
        return f"{subject} is invited."

    async def do_revoke(self, name: str) -> str | None:
        """End somebody's access, once that is confirmed."""
        member, found = self._number("member"), await self._folders.one(name, self.actor)
        row = next((one for one in found.members if one.id == member), None)
        if row is None:
            raise BadForm("There is no such member.")
        if not self.confirmed:
            points = [
                "New sessions do not get the folder any more.",
                "A running session that has it reads it until that session ends; the folder's page says which have it.",
                f"What {row.subject} has put into the folder stays there.",
            ]
            question, button = f"End the access of {row.subject}?", "End it"
            if row.state is MemberState.PENDING:
                points = ["The folder is not on their list any more, and it cannot be accepted."]
                question, button = f"Withdraw the invitation of {row.subject}?", "Withdraw it"
            self.confirm(question, points, button, back=f"folder/{name}", danger=True)
            return None
        done = await self._folders.revoke(name, self.actor, member)
        left = [one for one in await self.service.sessions.of(done) if one.lost]
        if row.state is MemberState.PENDING:
            return f"{row.subject} is invited no more."
        more = f" {len(left)} running session{'s have' if len(left) > 1 else ' has'} it still." if left else ""
        return f"The access of {row.subject} has ended.{more}"

    async def do_accept(self, name: str) -> str:
        """Accept an invitation."""
        await self._folders.accept(name, self.actor, self._number("invitation"))
        return f"The folder {name} is shared with you: choose it in the form of a start."

    async def do_decline(self, name: str) -> str:
        """Decline an invitation."""
        await self._folders.decline(name, self.actor, self._number("invitation"))
        return f"You declined the folder {name}."

    async def do_leave(self, name: str) -> str | None:
        """Leave, once that is confirmed."""
        found = await self._folders.one(name, self.actor)
        if not self.confirmed and not found.folder.published:
            points = [
                "You cannot read it any more.",
                "What you have put into it stays there.",
                "Only its owner can invite you again.",
            ]
            self.confirm(f"Leave the folder {name}?", points, "Leave", back=f"folder/{name}", danger=True)
            return None
        await self._folders.leave(name, self.actor)
        return f"The folder {name} is not on your list any more."

    async def do_keep(self, name: str) -> str:
        """Put a dataset on the visitor's list."""
        await self._folders.keep_dataset(name, self.actor)
        return f"The dataset {name} is on your list: choose it in the form of a start."

    async def do_describe(self, name: str) -> str:
        """Change what is said of it."""
        changes: dict[str, Any] = {
            field: self.get_body_argument(field, "").replace("\r\n", "\n")
            for field in ("description", "licence", "checksums")
        }
        changes |= {field: self.get_body_argument(field, "") == "yes" for field in ("dataset", "published")}
        await self._folders.describe(name, self.actor, changes)
        return "It is changed."

    async def do_handover(self, name: str) -> str:
        """Offer it to a member."""
        to = self.text("to", "The member", max_length=255, required=False)
        await self._folders.offer_handover(name, self.actor, to)
        return f"{to} may take it over." if to else "It is not offered any more."

    async def do_handover_answer(self, name: str) -> str:
        """Become its owner, or not."""
        accepted = self.get_body_argument("accepted", "") == "yes"
        await self._folders.accept_handover(name, self.actor, accepted)
        return f"The folder {name} is yours now." if accepted else "You did not take it over."

    async def do_delete(self, name: str) -> str:
        """Delete it; its name is typed as a confirmation."""
        await self._folders.delete(name, self.actor, self.text("confirm", "The name", max_length=63))
        return f"The folder {name} is deleted."

    async def do_scan(self, name: str) -> str:
        """Count what members cannot use."""
        return _counted(await self._folders.scan(name, self.actor))

    async def do_repair(self, name: str) -> str:
        """Mend the visitor's own files."""
        found = await self._folders.repair(name, self.actor)
        return f"{found['mended']} of your files and folders are open to the members now. {_counted(found)}"

    async def do_measure(self, name: str) -> str:
        """Submit a job that measures it."""
        return await self._start(name, JobKind.MEASURE)

    async def do_verify(self, name: str) -> str:
        """Submit a job that compares it with its checksums."""
        return await self._start(name, JobKind.VERIFY)

    async def _start(self, name: str, kind: JobKind) -> str:
        found = await self._folders.one(name, self.actor)
        job = await self.service.jobs.start(found, self.actor, kind)
        return f"The job {job_sentence(job)}. Open this page again to see what it finds."

    async def do_end_sessions(self, name: str) -> str | None:
        """End the sessions whose users should not have it any more, once that is confirmed."""
        found = await self._folders.one(name, self.actor)
        require_manager(found.folder, self.actor)
        lost = [one for one in await self.service.sessions.of(found) if one.lost and not one.job]
        if not self.confirmed:
            points = [f"{one.user}, {one.server_name or 'the default server'}" for one in lost]
            points.append("What is not saved in them is lost.")
            self.confirm("End these sessions?", points, "End them", back=f"folder/{name}", danger=True)
            return None
        ended = await self.service.sessions.end_lost(found)
        return f"{len(ended)} session{'s are' if len(ended) != 1 else ' is'} being ended."

    async def do_apply(self, name: str) -> str:
        """Apply all rights again."""
        await self._folders.apply_again(name, self.actor)
        return "All rights are applied again."

    @property
    def _folders(self) -> Any:
        return self.service.folders

    def _number(self, field: str) -> int:
        value = self.get_body_argument(field, "0")
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            raise BadForm("The form is not complete. Open the page again.")
        return int(value)

    def _until(self) -> float:
        """Return the end of the day of the form, 0 = no end."""
        value = self.get_body_argument("expires", "").strip()
        if not value:
            return 0.0
        try:
            return datetime.strptime(value, "%Y-%m-%d").astimezone().replace(hour=23, minute=59).timestamp()
        except ValueError as error:
            raise BadForm("The last day is written like 2027-01-31.") from error


def _counted(found: Any) -> str:
    """Return what a scan has found, for people."""
    lacking = sum(found["unusable"].values())
    said = f"{found['files']} files and {found['folders']} folders: "
    if lacking:
        some = ", ".join(found["names"][:3])
        said += f"{lacking} cannot be used by all members, such as {some}. Each owner mends theirs."
    else:
        said += "members can use all of them."
    if found["hard_links"]:
        said += f" {found['hard_links']} have a second name (hard links), and are left as they are."
    return said


PAGES: list[tuple[str, type[FolderPage]]] = [
    (f"folder/{NAME}", FolderHandler),
    (f"folder/{NAME}/([a-z-]+)", ActHandler),
]
