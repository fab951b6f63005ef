"""The directory of channels in JetStream: a stream that keeps the last value of each key.

The number of its last entry is the version of the directory. A change carries the version that it is based on. The
server refuses the change if that is not the latest version.
"""

from __future__ import annotations

from trunkline.brokers.engine.replica import DirectoryChanges
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.nats.names import NatsNames
from trunkline.brokers.nats.refusals import CHANGED, JetStreamRefused
from trunkline.brokers.nats.store import NatsStore

EXPECTED = "Nats-Expected-Last-Sequence"
REMOVED_S = 3600
"""How long the record of a removed key is kept. All processes have read it by then."""


class DirectoryStream:
    def __init__(self, names: NatsNames, store: NatsStore, settings: EngineSettings) -> None:
        self._stream = names.directory
        self._prefix = f"{names.directory}."
        self._store = store
        self._settings = settings
        self._is_there = False

    def connected(self) -> None:
        self._is_there = False

    async def read(self, after: int) -> DirectoryChanges:
        found = await self._store.js.stream(self._stream)
        if found is None:
            self._is_there = False
            return DirectoryChanges(0, {}, whole=after > 0)
        self._is_there = True
        last = int(found["state"]["last_seq"])
        whole = last < after
        values: dict[str, bytes | None] = {}
        at = 0 if whole else after
        while at < last:
            each = await self._store.js.message(self._stream, seq=at + 1, next_by_subj=f"{self._prefix}>")
            if each is None:
                break
            values[each.subject[len(self._prefix) :]] = each.data or None
            at = each.seq
        # More entries may have been stored meanwhile.
        return DirectoryChanges(max(at, last), values, whole)

    async def write(self, key: str, value: bytes | None, version: int) -> int | None:
        if not self._is_there:
            await self._create()
        headers = {EXPECTED: str(version)}
        if value is None:
            headers["Nats-TTL"] = f"{REMOVED_S}s"
        try:
            return await self._store.put(self._prefix + key, value or b"", headers)
        except JetStreamRefused as error:
            if error.number not in CHANGED:
                raise
            return None

    async def _create(self) -> None:
        if await self._store.js.stream(self._stream) is None:
            await self._store.js.ask(
                f"STREAM.CREATE.{self._stream}",
                name=self._stream,
                subjects=[f"{self._prefix}>"],
                retention="limits",
                storage="file",
                num_replicas=self._settings.replicas,
                max_msgs_per_subject=1,
                allow_msg_ttl=True,
            )
        self._is_there = True
