"""The error tree: as drawn, one root, promised prefixes of messages, data in fields, and picklable."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

import trunkline
from trunkline import errors
from trunkline.actors import errors as actor_errors
from trunkline.errors import TrunklineError
from trunkline.journal import errors as journal_errors
from trunkline.jupyter import errors as kernel_errors
from trunkline.memory import errors as memory_errors
from trunkline.message import Message
from trunkline.spark import errors as spark_errors

MODULES = (errors, actor_errors, journal_errors, kernel_errors, memory_errors, spark_errors)

MESSAGE = Message(topic="orders.placed", payload={"n": 1}, id="m1")

SAMPLES: list[TrunklineError] = [
    TrunklineError("something"),
    errors.UsageError("something"),
    errors.InvalidMessage("attempts must not be negative"),
    errors.InvalidTopic("a b", "has spaces"),
    errors.InvalidPriority(101),
    errors.InvalidTtl(-1.0),
    errors.HeadersTooLarge(70_000, 65_536),
    errors.InvalidSettings("no such key"),
    errors.InvalidExpression("a ==", "it ends too soon"),
    errors.MissingCorrelationId(),
    errors.MissingExtra("nats", "the NATS broker"),
    errors.UnknownScheme("http://x", ["memory", "unix"]),
    errors.UnknownHandler("bill", ["ship"]),
    errors.DuplicateName("handler", "bill"),
    errors.TopicNotStored("ticks.eu", ["orders.>"]),
    errors.Unsupported("memory", "durable topics"),
    errors.PayloadError("something"),
    errors.EncodeError("cannot send a value of type object"),
    errors.InvalidPayload("not a message"),
    errors.MessageTooLarge(11, 10),
    errors.Refused("something"),
    errors.MessageExpired("m1", 0.5),
    errors.BackpressureTimeout("billing", 30.0),
    errors.Congested("billing", 10_000),
    errors.InboxFull("billing", 100),
    errors.CircuitOpen("pricing", 12.5),
    errors.RateLimited("topic 'a'", 0.25),
    errors.NotRouted("m1", "orders", ["large"]),
    errors.NotStored("the disk is full"),
    errors.NotConfirmed("unix:///run/x.sock"),
    errors.NotAllowed("uid:1000 may not publish on orders"),
    errors.SchemaBroken("orders", "$.total", "Expected `float`, got `str`"),
    errors.HubError("no"),
    errors.HubUnavailable("unix:///run/x.sock", "connection refused"),
    errors.EngineUnavailable("nats", "nats://x:4222", "it does not answer"),
    errors.StoreUnusable("nats", "nats://x:4222", "it has no stream tl-messages"),
    errors.HubRefused("too_many", "there are too many", {"limit": 3}),
    errors.ProtocolError("malformed", "not a frame"),
    errors.HookFailed("Compress", ValueError("bad level")),
    errors.PartlyRefused([(MESSAGE, errors.InboxFull("billing", 100))], 3),
    errors.RequestError("something", "r1"),
    errors.RequestTimeout("r1", "pricing", 2.0, 0),
    errors.NoResponders("r1", "princing", 2.0, ["pricing"]),
    errors.RequestFailed("r1", "KeyError", "'a1'"),
    errors.NotHandled("something"),
    errors.HandlerTimeout("bill", 5.0),
    errors.NotAcknowledged(30.0),
    errors.Nacked("not now"),
    errors.Reject("never"),
    errors.JournalError("something"),
    journal_errors.JournalLocked("shop", 4711),
    journal_errors.JournalUnusable("shop", "there is no journal here"),
    journal_errors.WrongJournal("shop", "one", "another"),
    spark_errors.UnknownJournal("tables", {"shop": "one"}, "shop", "another"),
    errors.JournalDamaged(11, 20, "orders.placed", "its checksum does not match"),
    spark_errors.JavaMissing(17, [("11.0.2", "jdk-11")]),
    spark_errors.PipelineError("something"),
    spark_errors.WarehouseLocked("tables", 4711),
    kernel_errors.KernelNotStarted("there is no kernel 'cobol' here", "cobol"),
    kernel_errors.KernelDied("k1", "its process was ended by SIGKILL"),
    kernel_errors.KernelRestarted("k1"),
    kernel_errors.ExecutionFailed("r1", "ZeroDivisionError: division by zero", None),
    kernel_errors.ExecutionTimeout("r1", 5.0, None),
    kernel_errors.WrongKernelKey("the kernel k1 signs with another key", "k1"),
    kernel_errors.KernelClosed("k1"),
    kernel_errors.KernelError("the client of kernel k1 was closed", "k1"),
    actor_errors.ActorError("something is wrong with an actor"),
    actor_errors.UnknownActor("shop.clerk"),
    actor_errors.ActorFailed("shop.clerk", 5, "ValueError: oh"),
    actor_errors.ActorProcessFailed("shop.clerk", "its process ended with -9", ""),
    actor_errors.SystemStopped("shop", "stopped"),
    actor_errors.ActorStopped("shop.till"),
    actor_errors.StashFull("shop.till", 100),
    spark_errors.WarehouseUnusable("tables", "there is no warehouse here"),
    memory_errors.WrongProcess("camera", 4711),
    memory_errors.SharedMemoryError("something"),
    memory_errors.SharedMemoryFull("camera", 1 << 30, 4096),
    memory_errors.NoProducer("camera"),
    memory_errors.ProducerGone("camera", died=True),
    memory_errors.LayoutMismatch("camera", "version 1", "version 2", ["field 'x' differs"]),
    memory_errors.TooManyConsumers("camera", 8),
    memory_errors.SlotsHeld("camera", 2, 17, 0.5),
    memory_errors.FrameDamaged("camera", 17),
    memory_errors.CutOff("camera", 17),
    errors.StreamEmpty("orders.>#1"),
    errors.Closed("something"),
    errors.BusClosed("bus"),
    errors.StreamClosed("orders.>#1"),
]


def defined() -> dict[str, type[BaseException]]:
    """Every class of the modules, by name."""
    return {
        name: value
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }


def drawn() -> dict[str, tuple[str | None, str]]:
    """Every name in the tree at the top of the module, with its parent and the file that the tree names."""
    assert errors.__doc__ is not None
    lines = errors.__doc__.splitlines()
    found: dict[str, tuple[str | None, str]] = {}
    path: list[str] = []
    for line in lines[lines.index("TrunklineError") :]:
        bare = line.lstrip("│├└─ ")
        if not bare:
            continue
        depth = (len(line) - len(bare)) // 4
        name, *about = bare.split()
        assert name not in found, f"{name} is drawn twice"
        path[depth:] = [name]
        file = about[0].strip("()") if about and about[0].endswith(".py)") else "errors.py"
        found[name] = (path[depth - 1] if depth else None, file)
    return found


def test_the_tree_is_drawn_as_it_is() -> None:
    actual = {
        name: (
            None if cls is TrunklineError else cls.__bases__[0].__name__,
            cls.__module__.removeprefix("trunkline.").replace(".", "/") + ".py",
        )
        for name, cls in defined().items()
    }
    assert drawn() == actual


def test_no_module_defines_errors_that_the_tree_does_not_know() -> None:
    root = Path(errors.__file__).parent
    files = {f"trunkline.{'.'.join(path.relative_to(root).with_suffix('').parts)}" for path in root.rglob("errors.py")}
    assert files == {module.__name__ for module in MODULES}


@pytest.mark.parametrize("name", defined())
def test_every_error_is_exported(name: str) -> None:
    assert getattr(trunkline, name) is defined()[name]


@pytest.mark.parametrize("cls", defined().values(), ids=defined())
def test_every_error_derives_from_the_one_root(cls: type[BaseException]) -> None:
    assert issubclass(cls, TrunklineError)
    assert issubclass(cls, Exception)
    assert not cls.__name__.startswith("_")


def test_a_star_import_brings_errors_and_nothing_else() -> None:
    # `trunkline` itself imports the module this way.
    names: dict[str, object] = {}
    exec("from trunkline.errors import *", names)
    names.pop("__builtins__")
    assert sorted(names) == sorted(name for name, cls in defined().items() if cls.__module__ == errors.__name__)


def test_every_error_has_a_sample() -> None:
    assert sorted(type(sample).__name__ for sample in SAMPLES) == sorted(defined())


@pytest.mark.parametrize(
    ("error", "beginning"),
    [
        (errors.MessageTooLarge(11, 10), "Message exceeds maximum size"),
        (errors.MessageExpired("m1", 0.5), "Message has expired"),
        (errors.BackpressureTimeout("billing", 30.0), "Backpressure timeout"),
        (errors.RequestTimeout("r1", "pricing", 2.0, 1), "Request timeout"),
    ],
)
def test_a_message_begins_with_the_words_people_look_for(error: TrunklineError, beginning: str) -> None:
    assert str(error).startswith(beginning + ":")


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (errors.MessageTooLarge(11, 10), ["11 bytes", "limit 10", "max_message_bytes"]),
        (errors.MessageExpired("m1", 0.5), ["m1", "0.500 s"]),
        (errors.BackpressureTimeout("billing", 30.0), ["billing", "30 s", "capacity"]),
        (errors.RequestTimeout("r1", "pricing", 2.0, 0), ["'pricing'", "2 s", "nobody subscribes"]),
        (errors.Congested("billing", 7), ["7", "billing", "max_pending"]),
        (errors.InboxFull("billing", 100), ["billing", "100", "reject"]),
        (errors.CircuitOpen("pricing", 12.5), ["pricing", "12.5 s"]),
        (errors.RateLimited("topic 'a'", 0.25), ["topic 'a'", "0.25 s"]),
        (errors.NotStored("the disk is full"), ["was not delivered", "the disk is full"]),
        (journal_errors.JournalLocked("shop", 4711), ["shop", "pid 4711", "Reading does not need the lock"]),
        (journal_errors.JournalLocked("shop", None), ["shop", "Another process"]),
        (journal_errors.JournalUnusable("shop", "there is no journal here"), ["shop", "there is no journal here"]),
        (errors.JournalDamaged(11, 20, "orders.placed", "broken"), ["11 to 20", "orders.placed", "broken"]),
        (spark_errors.WarehouseLocked("tables", 4711), ["tables", "pid 4711", "Reading does not need the lock"]),
        (spark_errors.WarehouseUnusable("tables", "no permission"), ["tables", "no permission"]),
        (errors.HookFailed("Compress", ValueError("bad level")), ["Compress", "ValueError: bad level"]),
        (errors.PartlyRefused([(MESSAGE, errors.InboxFull("b", 1))], 3), ["1 of 3", "the inbox of b is full"]),
        (errors.RequestFailed("r1", "KeyError", "'a1'"), ["KeyError: 'a1'"]),
        (errors.HandlerTimeout("bill", 5.0), ["bill", "5 s"]),
        (
            errors.MissingExtra("nats", "the NATS broker"),
            ["the NATS broker", "pip install 'trunkline[nats]', or '.[nats]' in a checkout"],
        ),
        (errors.UnknownScheme("http://x", ["memory", "unix"]), ["'http://x'", "memory, unix"]),
        (errors.UnknownHandler("bill", ["ship"]), ["'bill'", "ship"]),
        (errors.UnknownHandler("bill", []), ["'bill'", "none"]),
        (
            errors.NotRouted("m1", "orders", ["large", "robots (disabled)"]),
            ["route message m1", "orders", "large, robots (disabled)"],
        ),
        (errors.NotRouted("", "orders", []), ["without an id", "none"]),
        (errors.DuplicateName("handler", "bill"), ["handler", "'bill'", "another name"]),
        (errors.TopicNotStored("ticks.eu", ["orders.>"]), ["'ticks.eu'", "orders.>", "durable"]),
        (errors.Unsupported("memory", "durable topics"), ["memory", "durable topics"]),
        (errors.InvalidExpression("a ==", "it ends too soon"), ["'a =='", "it ends too soon"]),
        (errors.BusClosed("bus"), ["'bus'", "trunkline.connect()"]),
        (errors.InvalidPriority(101), ["0 to 100", "101"]),
        (errors.InvalidTtl(-1.0), ["above 0", "-1.0", "never expires"]),
        (errors.HeadersTooLarge(70_000, 65_536), ["70,000", "65,536", "payload"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_message_says_what_happened(error: TrunklineError, parts: list[str]) -> None:
    for part in parts:
        assert part in str(error)


def test_a_request_with_responders_does_not_say_that_there_were_none() -> None:
    for responders in (None, 1, 5):
        assert "nobody" not in str(errors.RequestTimeout("r1", "pricing", 2.0, responders))


def test_errors_carry_their_data_in_fields() -> None:
    too_large = errors.MessageTooLarge(11, 10)
    assert (too_large.size, too_large.limit) == (11, 10)
    expired = errors.MessageExpired("m1", 0.5)
    assert (expired.message_id, expired.late_s) == ("m1", 0.5)
    slow = errors.BackpressureTimeout("billing", 30.0)
    assert (slow.subscriber, slow.waited_s) == ("billing", 30.0)
    unanswered = errors.RequestTimeout("r1", "pricing", 2.0, None)
    assert (unanswered.request_id, unanswered.topic, unanswered.timeout_s) == ("r1", "pricing", 2.0)
    failed = errors.RequestFailed("r1", "KeyError", "'a1'")
    assert (failed.request_id, failed.error_type, failed.detail) == ("r1", "KeyError", "'a1'")
    full = errors.InboxFull("billing", 100)
    partly = errors.PartlyRefused([(MESSAGE, full)], 3)
    assert partly.refused == ((MESSAGE, full),)
    assert errors.NotStored("the disk is full").why == "the disk is full"
    locked = journal_errors.JournalLocked("shop", 4711)
    assert (locked.path, locked.pid) == ("shop", 4711)
    unusable = journal_errors.JournalUnusable("shop", "no permission")
    assert (unusable.path, unusable.why) == ("shop", "no permission")
    damaged = errors.JournalDamaged(11, 20, "orders.placed", "broken")
    assert (damaged.first, damaged.last, damaged.where, damaged.why) == (11, 20, "orders.placed", "broken")


def test_what_may_succeed_later_says_so() -> None:
    assert {name for name, cls in defined().items() if getattr(cls, "retryable", False)} == {
        "BackpressureTimeout",
        "Nacked",
        "NotAcknowledged",
        "Congested",
        "InboxFull",
        "CircuitOpen",
        "RateLimited",
        "NoResponders",
        "RequestTimeout",
        "HandlerTimeout",
        "NotConfirmed",
        "NotStored",
        "HubUnavailable",
        "EngineUnavailable",
        "JournalLocked",
        "WarehouseLocked",
        "NoProducer",
        "ProducerGone",
        "SharedMemoryFull",
        "SlotsHeld",
        "TooManyConsumers",
    }


def same(one: BaseException, other: BaseException) -> bool:
    def plain(error: BaseException) -> dict[str, str]:
        return {name: repr(value) for name, value in vars(error).items()}

    return type(one) is type(other) and str(one) == str(other) and plain(one) == plain(other)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_between_processes(error: TrunklineError) -> None:
    # An exception that pickles but does not unpickle breaks a process pool and hides itself.
    assert same(pickle.loads(pickle.dumps(error)), error)
    assert same(copy.copy(error), error)
