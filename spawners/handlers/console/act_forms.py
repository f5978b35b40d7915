"""The forms by which administrators act: a GET asks, with what it concerns and why it is done, and a POST does it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from jupyterhub.scopes import needs_scope
from tornado import web

from carme_hub.domain.administration.messages import Audience, Kind
from carme_hub.domain.administration.scopes import MESSAGE, OPERATE, READ
from carme_hub.domain.administration.texts import MOST_TEXT, BadAct
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, SlurmError, StoreError
from carme_hub.spawners.console import acts
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.console.base import ROOT, ConsoleHandler, actor_of
from carme_hub.spawners.handlers.console.forms import Field, reason_field, time_of, written
from carme_hub.spawners.home.cards import profile_names
from carme_hub.spawners.hub.shared import HubContext

Said = list[tuple[str, str]]
#: Sessions and jobs that a question names.
_MOST_SHOWN = 50
_ZONE = "In the hub's time zone."


class ActHandler(ConsoleHandler):
    """The base: shows the form, checks it, and says what came of it."""

    title, button, style = "", "", "primary"
    #: Names that the form keeps from its link, such as the sessions that were chosen.
    kept: tuple[str, ...] = ()

    @web.authenticated
    async def get(self) -> None:
        """Ask; nothing is changed."""
        hub = self.checked_hub()
        fields = self.fields(hub)
        await self._ask(hub, fields, written(self, fields, from_body=False))

    @web.authenticated
    async def post(self) -> None:
        """Do it."""
        hub = self.checked_hub()
        fields = self.fields(hub)
        values = written(self, fields, from_body=True)
        try:
            said = await self.do(hub, values)
        except BadAct as error:
            await self._ask(hub, fields, values, 400, {error.field: error.message})
        except (Refused, SlurmError, StoreError) as error:
            hub.log.warning("%s: %s was not done: %s", self.current_user.name, self.title, error)
            status = 409 if isinstance(error, Refused) else 503
            await self._ask(hub, fields, values, status, {"": acts.said(error)})
        else:
            await self.show("done.html", heading=self.title, said=said, back=self.address(self.tab))

    async def _ask(
        self,
        hub: HubContext,
        fields: Sequence[Field],
        values: dict[str, str],
        status: int = 200,
        errors: dict[str, str] | None = None,
    ) -> None:
        points, possible = await self.points(hub)
        named = {each.name for each in fields}
        wrong = errors or {}
        await self.show(
            "act.html",
            heading=self.title,
            status=status,
            fields=[(each, values.get(each.name, ""), wrong.get(each.name, "")) for each in fields],
            problems=[text for name, text in wrong.items() if name not in named],
            points=points,
            possible=possible,
            kept=[(name, value) for name in self.kept for value in self.chosen(name)],
            button=self.button,
            style=self.style,
            back=self.address(self.tab),
        )

    def chosen(self, name: str) -> list[str]:
        """Return the values of what was chosen, from the link or the form."""
        values = dict.fromkeys(self.get_arguments(name))  # the address of the form has them as well
        return [value for value in values if 0 < len(value) <= 255][: acts.MOST_SESSIONS]

    def one(self, name: str) -> str:
        """Return the one value of what was chosen, "" without one."""
        return next(iter(self.chosen(name)), "")

    def fields(self, hub: HubContext) -> list[Field]:  # noqa: ARG002
        """Return the fields of the form."""
        return [reason_field()]

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:  # noqa: ARG002
        """Return what it concerns, as sentences, and whether it can be done at all."""
        return [], True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Do it, and return what to say of it."""
        raise NotImplementedError


class StopHandler(ActHandler):
    """Stops sessions. The visitor needs JupyterHub's own ``delete:servers`` for each of their users."""

    scope, title, button, style = READ, "Stop sessions", "Stop them", "danger"
    kept = ("session",)

    def fields(self, hub: HubContext) -> list[Field]:  # noqa: ARG002
        """Return the fields."""
        return [reason_field("The users read it on their page. It is kept in the audit log with your name.")]

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:
        """Return whose sessions they are."""
        found = [hub.registry.current(id) for id in self.chosen("session")]
        points = [_session_words(each) for each in found if each is not None]
        if not points:
            return ["There is no such session any more. Choose some in the list."], False
        lost = "What is not saved is lost. GPU time that is held and was not used is released."
        return [*points, lost, "This cannot be undone."], True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Stop each, and say which could not be stopped."""
        said: Said = []
        for id in self.chosen("session"):
            session = hub.registry.current(id)
            try:
                await self._stop(
                    hub, id, values["reason"], user_name=session.user if session else self.current_user.name
                )
            except web.HTTPError:
                said.append(("danger", f"{_session_words(session)} You may not stop servers of this user."))
            except BadAct:
                raise
            except (Refused, StoreError) as error:
                said.append(("warning", acts.said(error)))
            else:
                said.append(("success", f"{_session_words(session)} It is being stopped."))
        return said or [("info", "No session was chosen.")]

    @needs_scope("delete:servers")
    async def _stop(self, hub: HubContext, id: str, reason: str, user_name: str) -> None:  # noqa: ARG002
        await acts.stop_session(hub, actor_of(self, "page"), id, reason)


def _session_words(session: Session | None) -> str:
    if session is None:
        return "A session has ended already."
    where = f" on {session.node}" if session.node else ""
    server = f" “{session.server_name}”" if session.server_name else ""
    gpus = f", {session.request.gpus}" if session.request.gpus else ""
    return f"{session.user}{server}{where}: profile {session.request.profile}{gpus}."


class MessageHandler(ActHandler):
    """Sends a message."""

    scope, tab, title, button = MESSAGE, "/messages", "Write a message", "Send it"

    def fields(self, hub: HubContext) -> list[Field]:
        """Return the fields."""
        mails = hub.admission is not None or hub.slots is not None  # their services send mail
        to = (
            *((Audience.USER.value, "one user"), (Audience.NODE.value, "all on a node")),
            *((Audience.GROUP.value, "a group"), (Audience.IMAGE.value, "all with an image")),
            (Audience.EVERYBODY.value, "everybody"),
        )
        return [
            Field("to", "To", "select", choices=to, value=Audience.USER.value),
            Field("name", "Name", hint="Of the user, the node, the image or the group (of an account: account:NAME)."),
            Field("text", "Text", "textarea", "Text only.", required=True, most=MOST_TEXT),
            Field("ends", "Until", "time", f"After that it is not shown any more. Empty: for a week. {_ZONE}"),
            *([Field("mail", "By mail too, where the hub sends mail", "check")] if mails else []),
            reason_field(),
        ]

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:  # noqa: ARG002
        """Say where it appears."""
        where = "It appears on the page of each of them and in JupyterLab, until they have seen it."
        return [where, "Who has not seen it yet is spared it when you take it back; a mail cannot be taken back."], True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Send it."""
        sent = await acts.send_message(
            *(hub, self.db, actor_of(self, "page"), values["to"], values["name"], values["text"], values["reason"]),
            time_of(self, "ends"),
            mail=values.get("mail") == "1",
        )
        return [("success", f"The message to {sent.target} is on its way, for {_users(sent.recipients)}.")]


def _users(count: int) -> str:
    return f"{count} user{'' if count == 1 else 's'}"


class AnnounceHandler(ActHandler):
    """Announces something to everybody."""

    scope, tab, title, button = MESSAGE, "/messages", "Announce something", "Announce it"

    def fields(self, hub: HubContext) -> list[Field]:  # noqa: ARG002
        """Return the fields."""
        kinds = ((Kind.ANNOUNCEMENT.value, "an announcement"), (Kind.MAINTENANCE.value, "maintenance"))
        begins = "Of an announcement, when it appears (empty: now); of maintenance, when that begins."
        return [
            Field("kind", "What", "select", choices=kinds, value=Kind.ANNOUNCEMENT.value),
            Field("text", "Text", "textarea", "Text only.", required=True, most=MOST_TEXT),
            Field("begins", "From", "time", f"{begins} {_ZONE}"),
            Field("ends", "To", "time", "Then it disappears.", required=True),
            reason_field(),
        ]

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:
        """Say what it does not do."""
        points = ["It appears on everybody's page, on the form that starts a server, and in JupyterLab."]
        if hub.slots is not None:
            points.append("It keeps no nodes free: windows in the GPU calendar do, and are announced by themselves.")
        return points, True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Announce it."""
        try:
            kind = Kind(values["kind"])
        except ValueError as error:
            raise BadAct("Choose what it is.", "kind") from error
        if kind is Kind.MESSAGE:
            raise BadAct("Choose what it is.", "kind")
        begins, ends = time_of(self, "begins"), time_of(self, "ends")
        if not ends:
            raise BadAct("Say when it ends.", "ends")
        by = actor_of(self, "page")
        found = await acts.administration(hub).announce(by, kind, values["text"], values["reason"], begins, ends)
        return [("success", f"It is announced, until {clock(found.ends, time.time())}.")]


class WithdrawHandler(ActHandler):
    """Takes back a message or an announcement."""

    scope, tab, title, button = MESSAGE, "/messages", "Take it back", "Take it back"
    kept = ("id",)

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:
        """Return the text, and who has seen it."""
        found = await acts.administration(hub).message(self.one("id"))
        if found is None or not found.can_be_withdrawn(time.time()):
            return ["There is no such message, it is over, or everybody has seen it."], False
        seen = f"{found.seen} of {_users(found.recipients)} have seen it." if found.kind is Kind.MESSAGE else ""
        return [each for each in (f"To {found.target}: {found.text}", seen) if each], True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Take it back."""
        await acts.administration(hub).withdraw(actor_of(self, "page"), self.one("id"), values["reason"])
        return [("success", "It is taken back.")]


class DrainHandler(ActHandler):
    """Lets nothing new start on a node."""

    scope, tab, title, button, style = OPERATE, "/nodes", "Drain a node", "Drain it", "danger"
    kept = ("node",)
    drained = True

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:
        """Return who is on the node."""
        node = self.one("node")
        try:
            found = await acts.who_is_on(hub, node)
        except SlurmError:
            return [f"Node {node}. Slurm does not answer, so it is not known who is on it."], True
        if not self.drained:
            return [f"Jobs can start on {node} again."], bool(node)
        points = [f"Nothing new starts on {node}. What runs there continues until it ends."]
        here = [_session_words(each) for each in found.sessions]
        here += [f"{user}: job {id} {name}." for id, user, name in found.jobs]
        more = [f"And {len(here) - _MOST_SHOWN} more."] if len(here) > _MOST_SHOWN else []
        return [*points, *(here[:_MOST_SHOWN] or ["Nobody is on it."]), *more], bool(node)

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Do it."""
        node = self.one("node")
        await acts.set_drained(hub, actor_of(self, "page"), node, values["reason"], drained=self.drained)
        return [("success", f"{node} is drained." if self.drained else f"Jobs can start on {node} again.")]


class ResumeHandler(DrainHandler):
    """Lets jobs start on a node again."""

    title, button, style, drained = "Resume a node", "Resume it", "primary", False


class StopStartsHandler(ActHandler):
    """Lets nothing new start."""

    scope, tab, title, button, style = OPERATE, "/starts", "Stop new starts", "Stop them", "danger"

    def fields(self, hub: HubContext) -> list[Field]:  # noqa: ARG002
        """Return the fields."""
        profiles = tuple(profile_names(self.current_user.spawner).items())
        return [
            Field("profile", "Profile", hint="Its slug. Empty: any.", choices=profiles, most=64),
            Field("partition", "Partition", hint="Empty: any."),
            Field("until", "Until", "time", f"Empty: until somebody allows them again. {_ZONE}"),
            reason_field("Users read it in the form. It is kept in the audit log with your name."),
        ]

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:  # noqa: ARG002
        """Say what it concerns."""
        return ["Servers, companions and batch jobs of the hub do not start. What runs is not affected."], True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Stop them."""
        rule = await acts.stop_starts(
            *(hub, actor_of(self, "page"), values["reason"], values["profile"], values["partition"]),
            time_of(self, "until"),
            profiles=profile_names(self.current_user.spawner),
        )
        return [("success", f"New starts of {rule.about} are stopped {acts.until_words(rule.until, clock)}.")]


class AllowStartsHandler(ActHandler):
    """Allows new starts again."""

    scope, tab, title, button = OPERATE, "/starts", "Allow new starts again", "Allow them"
    kept = ("id",)

    async def points(self, hub: HubContext) -> tuple[list[str], bool]:
        """Return the rule."""
        rules = [rule for rule in acts.administration(hub).stops() if rule.id == self.one("id")]
        if not rules:
            return ["There is no such rule, or it is over already."], False
        return [f"New starts of {rules[0].about} were stopped by {rules[0].actor}: {rules[0].reason}"], True

    async def do(self, hub: HubContext, values: dict[str, str]) -> Said:
        """Allow them."""
        rule = await acts.administration(hub).allow_starts(actor_of(self, "page"), self.one("id"), values["reason"])
        return [("success", f"New starts of {rule.about} are allowed again.")]


HANDLERS: list[tuple[str, Any]] = [
    (f"{ROOT}/stop", StopHandler),
    (f"{ROOT}/message", MessageHandler),
    (f"{ROOT}/announce", AnnounceHandler),
    (f"{ROOT}/withdraw", WithdrawHandler),
    (f"{ROOT}/drain", DrainHandler),
    (f"{ROOT}/resume", ResumeHandler),
    (f"{ROOT}/stop-starts", StopStartsHandler),
    (f"{ROOT}/allow-starts", AllowStartsHandler),
]
