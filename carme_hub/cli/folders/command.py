"""``carme-hub folders``: make and share folders, answer invitations, find datasets."""

from __future__ import annotations

import time
from typing import Any

from traitlets import Bool, Unicode

from carme_hub.cli.base import CommandGroup, UsageError, positional_arguments

from .client import FolderTask, counts_text, folder_table, folder_text, path_of

_HERE = "carme_hub.cli.folders.command."


class FoldersApp(CommandGroup):
    """The commands on shared folders."""

    name = "carme-hub folders"
    description = """Make and share folders, from a login node, your own machine or a script: by the hub's folders
    service, with one of your tokens. --hub is the hub's address as in a browser. The token needs the scopes
    access:services!service=folders and custom:carme:folders:write. A folder is named by its name or id. Exit status: 0
    done, 1 refused, 2 the service did not answer."""

    subcommands: Any = {
        "list": (_HERE + "ListApp", "List your folders and those that are shared with you"),
        "show": (_HERE + "ShowApp", "Show a folder with its members"),
        "create": (_HERE + "CreateApp", "Make a folder"),
        "invite": (_HERE + "InviteApp", "Invite a user, a group or an account"),
        "revoke": (_HERE + "RevokeApp", "End the access of a member"),
        "accept": (_HERE + "AcceptApp", "Accept an invitation, or a folder that is handed over"),
        "decline": (_HERE + "DeclineApp", "Decline an invitation, or a folder that is handed over"),
        "leave": (_HERE + "LeaveApp", "Leave a folder, or take a dataset off your list"),
        "handover": (_HERE + "HandoverApp", "Offer a folder to a member"),
        "describe": (_HERE + "DescribeApp", "Describe a folder, or publish it as a dataset"),
        "datasets": (_HERE + "DatasetsApp", "Search datasets"),
        "keep": (_HERE + "KeepApp", "Put a dataset on your list"),
        "scan": (_HERE + "ScanApp", "Count files that members cannot use"),
        "repair": (_HERE + "RepairApp", "Open your own files in a folder to its members"),
        "apply": (_HERE + "ApplyApp", "Apply a folder's members again, over changes by hand"),
        "disk": ("carme_hub.cli.folders.looks.DiskApp", "Show how full a folder is, or measure it"),
        "verify": ("carme_hub.cli.folders.looks.VerifyApp", "Compare a folder with its checksums"),
        "sessions": (_HERE + "SessionsApp", "List the sessions that have a folder"),
        "delete": (_HERE + "DeleteApp", "Delete a folder with all that is in it"),
    }


class ListApp(FolderTask):
    """List folders."""

    name = "carme-hub folders list"
    description = "List your folders and those that are shared with you or that you are invited to."
    examples = "carme-hub folders list\ncarme-hub folders list --all --json"
    everybody = Bool(False, help="Everybody's folders, for administrators.").tag(config=True)
    flags: Any = {**FolderTask.flags, "all": ({"ListApp": {"everybody": True}}, "Everybody's, for administrators.")}

    async def work(self) -> int:
        """List them."""
        positional_arguments(self)
        found = await self.every("folders", {"all": "true"} if self.everybody else {})
        return self.say(found, folder_table(found["folders"]) if found["folders"] else "No folder is yours or shared.")


class DatasetsApp(FolderTask):
    """Search datasets."""

    name = "carme-hub folders datasets"
    description = "List published datasets that have all the WORDS in name, description, licence or owner."
    examples = "carme-hub folders datasets genomes cc-by"

    async def work(self) -> int:
        """List them."""
        found = await self.every("datasets", {"words": " ".join(self.extra_args)})
        return self.say(found, folder_table(found["folders"]) if found["folders"] else "No dataset has these words.")


class ShowApp(FolderTask):
    """Show a folder."""

    name = "carme-hub folders show"
    description = "Show a folder; who manages it sees its members with their numbers."
    examples = "carme-hub folders show genomes"

    async def work(self) -> int:
        """Show it."""
        [name] = positional_arguments(self, "FOLDER")
        found = await self.ask("GET", path_of(name))
        return self.say(found, folder_text(found))


class CreateApp(FolderTask):
    """Make a folder."""

    name = "carme-hub folders create"
    description = """Make a folder of your own, or with --account one of an account that you coordinate. Its NAME is
    its place in sessions, /shared/NAME."""
    examples = 'carme-hub folders create genomes --description "Genomes of beetles"'
    account = Unicode("", help="The account to which it belongs; the default is you.").tag(config=True)
    root = Unicode("", help="Where it is made; the default is the site's first root.").tag(config=True)
    about = Unicode("", help="What is in it.").tag(config=True)
    aliases: Any = {
        **FolderTask.aliases,
        "account": "CreateApp.account",
        "root": "CreateApp.root",
        "description": "CreateApp.about",
    }

    async def work(self) -> int:
        """Make it."""
        [name] = positional_arguments(self, "NAME")
        body = {"name": name, "account": self.account, "root": self.root, "description": self.about}
        found = await self.ask("POST", "folders", body)
        return self.say(
            found, f"{found['name']} is made: {found['place']} in sessions, {found['path']} on the cluster."
        )


class InviteApp(FolderTask):
    """Invite somebody."""

    name = "carme-hub folders invite"
    description = """Invite a user, or with --kind a group or an account, whose users answer each alone. Who is in it
    already gets the new role and end at once."""
    examples = "carme-hub folders invite genomes bob\ncarme-hub folders invite genomes lab --kind group --write"
    kind = Unicode("user", help="user (the default), group or account.").tag(config=True)
    until = Unicode("", help="The last day of the access, such as 2027-01-31. The default is no end.").tag(config=True)
    write = Bool(False, help="They may write; the default is to read.").tag(config=True)
    aliases: Any = {**FolderTask.aliases, "kind": "InviteApp.kind", "until": "InviteApp.until"}
    flags: Any = {**FolderTask.flags, "write": ({"InviteApp": {"write": True}}, "They may write.")}

    async def work(self) -> int:
        """Invite them."""
        name, subject = positional_arguments(self, "FOLDER", "NAME")
        body = {"kind": self.kind, "subject": subject, "role": "rw" if self.write else "ro", "expires": self._end()}
        found = await self.ask("POST", path_of(name, "members"), body)
        return self.say(found, f"{subject} is invited to {found['name']}.")

    def _end(self) -> int | None:
        if not self.until:
            return None
        try:
            day = time.strptime(self.until, "%Y-%m-%d")
        except ValueError as error:
            raise UsageError("write the last day like 2027-01-31") from error
        return int(time.mktime((*day[:3], 23, 59, 0, 0, 0, -1)))


class RevokeApp(FolderTask):
    """End somebody's access."""

    name = "carme-hub folders revoke"
    description = """End the access of a user, or with --kind of a group or an account and all who came by it. New
    sessions do not get the folder any more; what runs keeps open files until it ends."""
    examples = "carme-hub folders revoke genomes bob"
    kind = Unicode("user", help="user (the default), group or account.").tag(config=True)
    aliases: Any = {**FolderTask.aliases, "kind": "RevokeApp.kind"}

    async def work(self) -> int:
        """End it."""
        name, subject = positional_arguments(self, "FOLDER", "NAME")
        rows = (await self.ask("GET", path_of(name)))["members"]
        live = ("pending", "open", "accepted")
        ids = [
            row["id"] for row in rows if (row["kind"], row["subject"]) == (self.kind, subject) and row["state"] in live
        ]
        if not ids:
            raise UsageError(f"{subject} is no member of {name}: carme-hub folders show {name} lists them")
        for id in ids:
            found = await self.ask("DELETE", path_of(name, "members", id))
        return self.say(found, f"The access of {subject} to {name} has ended.")


class _AnswerApp(FolderTask):
    """Answer an invitation, or the offer of a folder."""

    accepted = True

    async def work(self) -> int:
        """Answer."""
        [name] = positional_arguments(self, "FOLDER")
        folder = await self.ask("GET", path_of(name))
        offered = bool(folder["handover"]) and not folder["managed"] and not folder["invitations"]
        path = path_of(name, "handover", "answer") if offered else path_of(name, "answer")
        found = await self.ask("POST", path, {"accepted": self.accepted})
        if not self.accepted:
            return self.say({} if not self.as_json else found, f"You declined {name}.")
        more = "is yours now" if offered else f"is shared with you: {found['place']} in sessions that choose it"
        return self.say(found, f"{found['name']} {more}.")


class AcceptApp(_AnswerApp):
    """Accept."""

    name = "carme-hub folders accept"
    description = "Accept an invitation, or become the owner of a folder that is offered to you."
    examples = "carme-hub folders accept genomes"


class DeclineApp(_AnswerApp):
    """Decline."""

    name = "carme-hub folders decline"
    description = "Decline an invitation, or a folder that is offered to you."
    examples = "carme-hub folders decline genomes"
    accepted = False


class _ActApp(FolderTask):
    """One act on a folder without further arguments."""

    act = ""
    said = ""

    async def work(self) -> int:
        """Do it."""
        [name] = positional_arguments(self, "FOLDER")
        found = await self.ask("POST", path_of(name, self.act))
        return self.say(found, self.said.format(name=name) if self.said else counts_text(found))


class LeaveApp(_ActApp):
    """Leave a folder."""

    name = "carme-hub folders leave"
    description = "Leave a folder that is shared with you, or take a dataset off your list."
    examples = "carme-hub folders leave genomes"
    act, said = "leave", "{name} is not on your list any more."


class KeepApp(_ActApp):
    """Put a dataset on the list."""

    name = "carme-hub folders keep"
    description = "Put a published dataset on your list, which the form of a start shows."
    examples = "carme-hub folders keep genomes"
    act, said = "keep", "{name} is on your list."


class ScanApp(_ActApp):
    """Count files that members cannot use."""

    name = "carme-hub folders scan"
    description = "Count the files of a folder that its members cannot use, with the names of some."
    examples = "carme-hub folders scan genomes"
    act = "scan"


class RepairApp(_ActApp):
    """Open own files."""

    name = "carme-hub folders repair"
    description = """Open your own files in a folder to its members: those that were moved there, or whose rights were
    changed. Files of others are counted; each owner opens their own."""
    examples = "carme-hub folders repair genomes"
    act = "repair"


class ApplyApp(_ActApp):
    """Apply the members again."""

    name = "carme-hub folders apply"
    description = "Write the members of a folder to the file system again, over what somebody changed there by hand."
    examples = "carme-hub folders apply genomes"
    act, said = "apply", "The members of {name} are applied again."


class HandoverApp(FolderTask):
    """Offer a folder to a member."""

    name = "carme-hub folders handover"
    description = "Offer a folder to a member, who becomes its owner by accepting. Without a USER the offer ends."
    examples = "carme-hub folders handover genomes bob"

    async def work(self) -> int:
        """Offer it."""
        name, to = positional_arguments(self, "FOLDER", "USER") if len(self.extra_args) > 1 else (self._one(), "")
        found = await self.ask("POST", path_of(name, "handover"), {"to": to})
        return self.say(found, f"{name} is offered to {to}." if to else f"{name} is offered to nobody.")

    def _one(self) -> str:
        return positional_arguments(self, "FOLDER")[0]


class DescribeApp(FolderTask):
    """Describe a folder."""

    name = "carme-hub folders describe"
    description = """Change what is said of a folder. A published dataset is found and read by everybody on the
    cluster; it needs a description and a licence."""
    examples = "carme-hub folders describe genomes --licence CC-BY-4.0 --dataset yes --published yes"
    about = Unicode("", help="What is in it.").tag(config=True)
    licence = Unicode("", help="Its licence, such as CC-BY-4.0.").tag(config=True)
    checksums = Unicode("", help="A file in it with the checksums of the others, such as SHA256SUMS.").tag(config=True)
    dataset = Unicode("", help="yes or no: members read it, and only its writers change it.").tag(config=True)
    published = Unicode("", help="yes or no: everybody on the cluster finds and reads it.").tag(config=True)
    aliases: Any = {
        **FolderTask.aliases,
        "description": "DescribeApp.about",
        **{name: f"DescribeApp.{name}" for name in ("licence", "checksums", "dataset", "published")},
    }

    async def work(self) -> int:
        """Change it."""
        [name] = positional_arguments(self, "FOLDER")
        texts = {"description": self.about, "licence": self.licence, "checksums": self.checksums}
        body: dict[str, object] = {field: value for field, value in texts.items() if value}
        for field in ("dataset", "published"):
            value = getattr(self, field)
            if value not in ("", "yes", "no"):
                raise UsageError(f"--{field} is yes or no")
            body |= {field: value == "yes"} if value else {}
        found = await self.ask("PATCH", path_of(name), body)
        return self.say(found, folder_text(found))


class SessionsApp(FolderTask):
    """List the sessions that have a folder."""

    name = "carme-hub folders sessions"
    description = "List the sessions that have a folder now, and whose users' access has ended since."
    examples = "carme-hub folders sessions genomes"

    async def work(self) -> int:
        """List them."""
        [name] = positional_arguments(self, "FOLDER")
        found = await self.ask("GET", path_of(name, "sessions"))
        lines = [
            f"{row['user']}  {row['server_name'] or 'default server'}  {row['mode']}  {row['session']}"
            + ("  access has ended" if row["lost"] else "")
            for row in found["sessions"]
        ]
        return self.say(found, "\n".join(lines) or f"No session has {name}.")


class DeleteApp(FolderTask):
    """Delete a folder."""

    name = "carme-hub folders delete"
    description = "Delete a folder with all that is in it. --confirm repeats its name; it cannot be undone."
    examples = "carme-hub folders delete genomes --confirm genomes"
    confirm = Unicode("", help="The folder's name once more.").tag(config=True)
    aliases: Any = {**FolderTask.aliases, "confirm": "DeleteApp.confirm"}

    async def work(self) -> int:
        """Delete it."""
        [name] = positional_arguments(self, "FOLDER")
        if not self.confirm:
            raise UsageError(f"repeat the name: carme-hub folders delete {name} --confirm {name}")
        found = await self.ask("DELETE", path_of(name), query={"name": self.confirm})
        return self.say(found, f"{name} is deleted.")
