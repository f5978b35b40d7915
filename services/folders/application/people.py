"""Groups, accounts and coordinated accounts of people, from the hub and from Slurm; what is not known stays unknown."""

from __future__ import annotations

from collections.abc import Collection

from carme_hub.domain.folders.rules import Actor
from carme_hub.services.accounts import accounts_of
from carme_hub.services.handlers import Visitor
from carme_hub.services.hub_users import HubUsers
from carme_hub.sessions.associations import AssociationCache

#: Seconds for which groups and accounts are believed, where they decide about access: with the time between two looks
#: (``CarmeFolders.interval``) it is less than the minute within which access ends.
MAX_AGE = 30.0


class PeopleOfSite:
    """Who somebody is."""

    def __init__(self, users: HubUsers, associations: AssociationCache) -> None:
        self._users, self._associations = users, associations

    async def actor(self, visitor: Visitor, *, admin: bool) -> Actor:
        """Return who sent a request; a service without the scope for everything is nobody's member."""
        if not visitor.is_user:
            return Actor(visitor.actor, admin=admin)
        accounts = await accounts_of(self._associations, visitor)
        coordinates = self._associations.coordinates(visitor.name)
        return Actor(visitor.name, visitor.person.groups, accounts, coordinates, admin)

    async def known(self, names: Collection[str]) -> list[Actor]:
        """Return those of some users whom the hub knows; their accounts are None before Slurm has answered."""
        await self._users.refresh(MAX_AGE)
        await self._associations.refresh(MAX_AGE)
        found = []
        for name in names:
            person = self._users.people.get(name)
            if person is not None:
                accounts = self._associations.accounts_of(name) if self._associations.known else None
                found.append(Actor(name, person.groups, accounts))
        return found
