"""The names of the subjects, streams and consumers of a namespace.

`NAMESPACE.TOPIC` for messages, `NAMESPACE-again.PLACE.TOPIC` for entries that are given back to one place,
`NAMESPACE-kept.TABLE.KEY` for keys, `NAMESPACE-directory.KEY` for channels, `NAMESPACE-ctl.…` between processes. One
stream stores the first two. Open topics keep their own names. Durable ones are stored in the stream `NAMESPACE-open`.
"""

from __future__ import annotations

import re
from hashlib import sha256


class NatsNames:
    def __init__(self, namespace: str) -> None:
        self.prefix = f"{namespace}."
        self.again = f"{namespace}-again."
        self.kept = f"{namespace}-kept"
        self.control = f"{namespace}-ctl."
        self.listens = f"{self.control}listens."
        """Every subscription also listens here, where no stream stores: so the server tells whether a topic has one."""
        self.stream = f"{namespace}-messages"
        self.open = f"{namespace}-open"
        """The stream of open topics that are durable."""
        self.directory = f"{namespace}-directory"

    def topic(self, subject: str) -> str:
        """The topic of an entry."""
        if subject.startswith(self.prefix):
            return subject[len(self.prefix) :]
        return subject[len(self.again) :].partition(".")[2]


def place_of(role: str) -> str:
    """The name of the consumer of a role: readable and unique."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", role)[:40]
    return f"{readable}-{sha256(role.encode()).hexdigest()[:12]}"
