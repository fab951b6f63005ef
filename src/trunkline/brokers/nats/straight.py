"""A direct path around the tasks of nats-py: data is written, and messages handled, in the same turn of the loop.

nats-py passes published data to a task that writes, arriving data to a task that reads, and messages to a task for each
subscription. Each costs a turn of the event loop. This module uses parts of nats-py that are not public. If they are
missing, the tasks do the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_CONTROL_LINE, MSG_RE

MAX_BUFFERED = 64 * 1024
"""While the write buffer of the socket holds more than this, the task of nats-py writes, because it can wait."""

Handle = Callable[[Msg], None]


class StraightWriter:
    """Appends to the data that nats-py has not written yet, and writes all of it, so the order is kept."""

    def __init__(self, connection: Client, transport: asyncio.WriteTransport) -> None:
        self._connection = connection
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._scheduled = False

    @staticmethod
    def of(connection: Client) -> StraightWriter | None:
        """A writer for a connection. None if nats-py lacks the parts that it needs, or the connection is not TCP."""
        parts = (getattr(connection, "_pending", None), getattr(connection, "_pending_data_size", None))
        if not isinstance(parts[0], list) or not isinstance(parts[1], int) or not hasattr(connection, "_flush_pending"):
            return None
        writer = _writer_of(connection)
        if writer is None:
            return None
        # uvloop delays writes below the limit of its buffer to the end of the turn.
        writer.transport.set_write_buffer_limits(0)
        return StraightWriter(connection, writer.transport)

    def add(self, commands: bytes) -> None:
        """Queue commands. They are written at `flush`, at the latest in the next turn."""
        connection = self._connection
        connection._pending.append(commands)
        connection._pending_data_size += len(commands)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        connection = self._connection
        if not connection._pending_data_size or not connection.is_connected:
            return
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size() > MAX_BUFFERED:
            if connection._flush_queue is None or connection._flush_queue.empty():
                without_waiting(connection._flush_pending())
            return
        pending, connection._pending = connection._pending, []
        connection._pending_data_size = 0
        transport.writelines(pending)


def _writer_of(connection: Client) -> asyncio.StreamWriter | None:
    found = getattr(getattr(connection, "_transport", None), "_io_writer", None)
    return found if isinstance(found, asyncio.StreamWriter) else None


def read_straight(connection: Client) -> None:
    """Handle a message that arrives alone without the task of nats-py that reads. All other data goes to that task."""
    reader: Any = getattr(getattr(connection, "_transport", None), "_io_reader", None)
    parser: Any = getattr(connection, "_ps", None)
    parts = ((reader, "_waiter"), (parser, "buf"), (parser, "state"), (connection, "_subs"))
    if not all(hasattr(owner, name) for owner, name in parts):
        return
    feed = reader.feed_data

    def feed_data(data: bytes) -> None:
        waiter = reader._waiter
        # If the task waits for data, and the parser has none, all earlier data has been handled.
        idle = waiter is not None and not waiter.done() and not parser.buf and parser.state == AWAITING_CONTROL_LINE
        if not idle or not _handle_alone(connection, data):
            feed(data)

    reader.feed_data = feed_data


def _handle_alone(connection: Client, data: bytes) -> bool:
    """Handle the data if it is exactly one message without headers, for a subscription made with `listen`."""
    found = MSG_RE.match(data)
    if found is None or found.end() + int(found[5]) + 2 != len(data):
        return False
    subscription = connection._subs.get(int(found[2]))
    queue = None if subscription is None else subscription._pending_queue
    if not isinstance(queue, _StraightQueue):
        return False
    queue.handle(Msg(connection, found[1].decode(), (found[4] or b"").decode(), data[found.end() : -2]))
    return True


def listen(connection: Client, subject: str, handle: Handle, queue: str = "") -> Subscription:
    """Subscribe without waiting."""

    async def later(message: Msg) -> None:
        handle(message)

    made: Subscription = without_waiting(connection.subscribe(subject, queue, cb=later))
    if _has_queue(made):
        made._pending_queue = _StraightQueue(made, handle)
    return made


def _has_queue(subscription: Subscription) -> bool:
    queue = getattr(subscription, "_pending_queue", None)
    return isinstance(queue, asyncio.Queue) and hasattr(subscription, "_pending_size")


class _StraightQueue(asyncio.Queue[Msg]):
    """Replaces the queue of a nats-py subscription. It is always empty, so the task of nats-py waits for ever."""

    def __init__(self, subscription: Subscription, handle: Handle) -> None:
        super().__init__()
        self._subscription = subscription
        self._handle = handle

    def put_nowait(self, item: Msg) -> None:
        self._subscription._pending_size -= len(item.data)
        self.handle(item)

    def handle(self, item: Msg) -> None:
        try:
            self._handle(item)
        except Exception as error:
            # An error must not end the task that reads from the socket.
            text = f"a message on {item.subject} could not be handled"
            asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})


def without_waiting(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine of nats-py that does not wait, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise AssertionError("nats-py waited in a call that should return at once")
