"""The checks of a channel's quality of service. Pure."""

from __future__ import annotations

from typing import Final

from trunkline.delivery.subscriber import Overflow
from trunkline.errors import ProtocolError
from trunkline.wire.control import Qos

REFUSE: Final = "refuse"
DEAD_LETTER: Final = "dead_letter"


def limits(qos: Qos) -> bool:
    """Whether it limits how long messages are kept."""
    return not (qos.max_age_s is None and qos.max_bytes is None and qos.max_messages is None)


def check_qos(qos: Qos) -> None:
    """Raises ProtocolError for invalid values."""
    if not 0 <= qos.priority <= 100:
        raise ProtocolError("malformed", f"a priority is from 0 to 100, not {qos.priority}")
    if qos.overflow not in list(Overflow):
        raise ProtocolError("malformed", f"unknown overflow policy {qos.overflow!r}")
    if qos.invalid not in (REFUSE, DEAD_LETTER):
        raise ProtocolError("malformed", f"invalid must be {REFUSE} or {DEAD_LETTER}, not {qos.invalid!r}")
    for limit in (qos.max_age_s, qos.max_bytes, qos.max_messages):
        if limit is not None and not limit > 0:
            raise ProtocolError("malformed", f"a limit of retention is above 0, not {limit}")
    if qos.group == "":
        raise ProtocolError("malformed", "the name of a group must not be empty")
