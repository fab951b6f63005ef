"""Which rights each control message needs. Every control message passes `check` before its handler is called.

A hub with a handler for a message without a row does not start. A row has the rights that its message needs, or the
reason why none are checked here. Some rights depend on the state of the hub (the topics of a channel, the subscription
at which a message became a dead letter). In these cases, the row names the code that checks them. PUBLISH frames, and
the `reply_to` of the messages in them, are checked by the session and by `Hub.publish`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from trunkline.errors import ProtocolError
from trunkline.hub.access import Access, Action
from trunkline.topic import EVERYTHING, reply_topic
from trunkline.wire import control

Right = tuple[Action, str]
"""An action, and the topic or pattern to which it applies."""


class RightsRow(NamedTuple):
    needs: Callable[[Any], Sequence[Right]]
    reason: str = ""
    """The reason, if no right is checked here."""


def _needs(*rights: Callable[[Any], Right]) -> RightsRow:
    return RightsRow(lambda message: [right(message) for right in rights])


def _free(reason: str) -> RightsRow:
    return RightsRow(lambda message: (), reason)


def _own(what: str) -> RightsRow:
    return _free(f"it reaches only {what} of its own connection")


def _subscribe(message: Any) -> Right:
    return Action.SUBSCRIBE, message.pattern


def _administer(message: Any) -> Right:
    return Action.ADMINISTER, EVERYTHING


RIGHTS: Final[Mapping[type[control.Control], RightsRow]] = MappingProxyType(
    {
        control.Hello: _free("identities come from the transport; Admission checks limits and replays"),
        control.Maps: _own("deliveries"),
        control.Goodbye: _own("the end"),
        control.Heartbeat: _free("the number in its answer is 0 for an identity without rules"),
        control.Topic: _needs(lambda message: (Action.PUBLISH, message.topic)),
        control.Withdraw: _own("batches"),
        control.Subscribe: _needs(_subscribe),
        control.Mapped: _own("deliveries"),
        control.Unsubscribe: _own("subscriptions"),
        control.Stop: _own("subscriptions"),
        control.Credit: _own("subscriptions"),
        control.Ack: _own("subscriptions, and messages that they were sent"),
        control.Nack: _own("subscriptions, and messages that they were sent"),
        control.Fates: _own("subscriptions, and messages that they were sent: Answers compares with their books"),
        control.Link: _needs(_subscribe, lambda message: (Action.PUBLISH, message.topic)),
        control.Unlink: _own("links"),
        control.Last: _needs(lambda message: (Action.SUBSCRIBE, message.topic)),
        control.Explain: _free("Explanations checks the rights on the topic, and answers `unknown` without them"),
        control.Forget: _free("DeadLetterApi requires the owner of the durable subscription, or administer"),
        control.Letters: _free("DeadLetterApi lists only those on topics that the identity may subscribe to"),
        control.LetterReplay: _free("DeadLetterApi requires the right to join the subscription that each letter is of"),
        control.LetterRemove: _free("DeadLetterApi requires the right to join the subscription that each letter is of"),
        control.ProducerRegister: _free("Directory requires publish on the topics of the channel, or create"),
        control.ProducerUnregister: _own("registrations"),
        control.ConsumerRegister: _free("Directory requires subscribe on the topics of the channel"),
        control.ConsumerUnregister: _own("registrations"),
        control.DiscoveryRequest: _free("Directory shows only channels on topics that the identity may use"),
        control.ChannelCreate: _needs(
            lambda message: (Action.CREATE, message.channel),
            lambda message: (Action.CREATE, message.pattern or message.channel),
        ),
        control.ChannelDestroy: _free("Registry requires the owner of the channel, or administer"),
        control.ChannelList: _free("Directory lists only channels on topics that the identity may use"),
        control.ChannelDescribe: _free("Directory shows only channels on topics that the identity may use"),
        control.SchemaPut: _needs(lambda message: (Action.CREATE, message.name)),
        control.SchemaGet: _free("Directory shows only schemas of names and channels that the identity may use"),
        control.SchemaList: _free("Directory lists only schemas of names and channels that the identity may use"),
        control.Stats: _needs(_administer),
        control.SnapshotRequest: _needs(_administer),
        control.Trace: _needs(_administer),
    }
)


def check(access: Access, identity: str, own: Container[str], message: control.Control) -> None:
    """Raises ProtocolError unless the identity has every right that the message needs.

    `own` are the reply topics that its connection has proved to be its own.
    """
    if isinstance(message, control.Subscribe) and proves_reply(message):
        own = (message.pattern,)
    for action, pattern in RIGHTS[type(message)].needs(message):
        if not access.may(identity, action, pattern, own):
            raise ProtocolError(
                "forbidden", f"{identity} may not {action.value} on {pattern}: the hub has no rule for it"
            )


def proves_reply(message: control.Subscribe) -> bool:
    """Whether a subscription proves by its secret that its reply topic belongs to the client."""
    return bool(message.secret) and reply_topic(message.secret) == message.pattern
