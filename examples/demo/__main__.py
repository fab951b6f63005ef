"""`python -m examples.demo [--keep] [DIRECTORY]`: tell the story, leave the report in DIRECTORY (demo-output), and end.

With --keep the shop goes on after that, with a page, until Ctrl-C.
"""

from __future__ import annotations

import signal

# Until there is something to clean up, Ctrl-C ends this program at once and without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402

import trunkline as tl  # noqa: E402
from examples.demo.books import Books  # noqa: E402
from examples.demo.narrator import FalseClaim, Narrator  # noqa: E402
from examples.demo.output import NotOurs, Output  # noqa: E402
from examples.demo.processes import Ended, Processes  # noqa: E402
from examples.demo.shop_goes_on import go_on  # noqa: E402
from examples.demo.story import BAD, Story  # noqa: E402

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def tell(narrator: Narrator, output: Output) -> None:
    narrator.say(
        """A small shop in several processes, on one message bus. Each line that begins with "ok" was compared with what
        it must be. This takes one or two minutes. Ctrl-C ends it and leaves nothing behind."""
    )
    async with Processes(output.logs) as processes:
        # Spark takes longest to start: it starts during the first chapters.
        await processes.start("spark", "examples.demo.spark", output.journal, output.warehouse)
        story = Story(narrator, processes, output)
        await story.run()
        await Books(story).run()
    output.keep()
    farewell(narrator, output.place, story.ids[BAD])


def farewell(narrator: Narrator, place: Path, message_id: str) -> None:
    trunkline = os.path.relpath(Path(sys.executable).with_name("trunkline"))
    narrator.line()
    narrator.say(f"All {narrator.checked} claims hold, after {narrator.elapsed_s:.0f} seconds. See for yourself:")
    narrator.line(f"  {place / 'report.html'}  (open it in a browser)")
    narrator.line(f"  {trunkline} page --journal {place / 'journal'}  (in a browser)")
    narrator.line(f"  {trunkline} journal stats {place / 'journal'}")
    narrator.line(f"  {trunkline} journal explain {place / 'journal'} \\\n    {message_id}")
    narrator.line(f'  {trunkline} pipeline sql {place / "journal"} \\\n    "select * from slow_consumers"')


async def main(place: Path, *, keep: bool = False) -> int:
    """0 if every claim holds, 1 if not; after Ctrl-C, SIGTERM or SIGHUP 128 and the number of the signal.

    A shop that goes on ends by such a signal, and with 0.
    """
    caught: list[signal.Signals] = []
    telling = asyncio.current_task()
    assert telling is not None

    def interrupt(number: signal.Signals) -> None:
        caught.append(number)
        if len(caught) == 1:  # the end of all processes is not interrupted
            complain("\nInterrupted: all processes are being ended ...")
            telling.cancel()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
    try:
        output = Output(place)
    except (NotOurs, OSError) as error:
        return complain(str(error))
    narrator = Narrator()
    try:
        await tell(narrator, output)
        if keep:
            await go_on(narrator, place)
    except asyncio.CancelledError:
        if output.kept:
            complain(f"All have ended. The report, the journal and the logs are in {place}.")
            return 0
        complain("All have ended, and nothing was kept.")
        return 128 + caught[0]
    except BrokenPipeError:
        # Whoever read this has gone. So has the place where Python would write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FalseClaim as error:
        output.keep()
        return complain(f"\nFALSE: {error}\nWhat was recorded until then is in {place}.")
    except (Ended, tl.TrunklineError, OSError) as error:
        output.keep()
        return complain(f"\nThe demo cannot go on: {type(error).__name__}: {error}\nThe logs are in {place}/logs.")
    finally:
        output.discard()  # unless it was kept
    return 0


def complain(text: str) -> int:
    with suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--keep"]
    sys.exit(asyncio.run(main(Path(words[0] if words else "demo-output"), keep="--keep" in sys.argv)))
