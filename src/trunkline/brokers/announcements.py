"""Descriptor files by which processes on this machine find producers, with or without a directory."""

from __future__ import annotations

import contextlib
import logging

from trunkline.errors import InvalidSettings
from trunkline.transports.descriptors import Descriptor, Descriptors
from trunkline.wire import control
from trunkline.wire.control import DiscoveryResponse, PeerInfo

log = logging.getLogger("trunkline.connection")


class Announcements:
    def __init__(self) -> None:
        self._files = Descriptors()

    def announce(self, request: control.ProducerRegister) -> None:
        """Write the descriptor file of a producer. Producers that a directory refused are not announced."""
        descriptor = Descriptor(
            channel=request.channel,
            shm_name=request.shm_name,
            schema_hash=request.schema_hash,
            schema_version=request.schema_version,
            config=request.config,
            metadata=request.metadata,
        )
        try:
            self._files.announce(descriptor)
        except (OSError, InvalidSettings) as error:
            log.warning("other processes cannot find the channel %s without a hub: %s", request.channel, error)

    def find(self, channel: str) -> DiscoveryResponse | None:
        descriptor = self._files.find(channel)
        if descriptor is None:
            return None
        producer = PeerInfo(
            name=f"pid {descriptor.pid}",
            identity="",
            status="active",
            since_ns=0,
            config=descriptor.config,
            metadata=descriptor.metadata,
        )
        return DiscoveryResponse(
            re=0,
            channel=channel,
            shm_name=descriptor.shm_name,
            schema_hash=descriptor.schema_hash,
            schema_version=descriptor.schema_version,
            status="active",
            producers=[producer],
        )

    def withdraw(self, channel: str) -> None:
        with contextlib.suppress(OSError, InvalidSettings):
            self._files.withdraw(channel)
