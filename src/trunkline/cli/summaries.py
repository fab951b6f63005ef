"""A one-line summary of each command, so that commands can be listed without importing them."""

from __future__ import annotations

from typing import Final

SUMMARIES: Final = {
    "up": "Run the hub that other processes connect to, until Ctrl-C.",
    "pub": "Publish a message, or one message per line of standard input, and print the ids.",
    "sub": "Show messages as they are published, until Ctrl-C.",
    "request": "Send a request, and show the response.",
    "ping": "Show the health of a bus. Exits with 1 if no bus of this name answers.",
    "control": "Send a command to a bus, and show its health. A hub with rules requires `administer` on _to.NAME.",
    "status": "Show the state of the hub, its problems, and what to do next. Exits with 1 if there is a problem.",
    "clients": "List the clients that are connected to the hub.",
    "subscribers": "List the subscribers at the hub, the slowest first, with the fates of their messages.",
    "top": "Show subscribers, clients, topics, actors, kernels and channels of a hub, slow ones first, until Ctrl-C.",
    "page": "Show a hub or a journal in a browser, until Ctrl-C. It needs the right to administer.",
    "trace": "Show the control messages between the hub and its clients, until Ctrl-C.",
    "explain": "Show the fate of a message for each subscriber. Exits with 1 if the message is not known.",
    "forget": "Delete a durable subscription at a running hub, and its pending messages."
    " Its subscribers must have left.",
    "record": "Keep topics of a server in a journal, exactly once, until Ctrl-C or SIGTERM.",
    "bridge": "Mirror topics of a hub on a server, both ways, until Ctrl-C or SIGTERM.",
    "doctor": "Show the shared-memory channels of this machine, and what dead processes left behind.",
    "sql": "Query a journal with SQL, without Java."
    " The tables of a pipeline are queried with `trunkline pipeline sql`.",
    "completion": "Print a script that lets a shell complete commands and options.",
    "channels": "The channels of a hub, or of a NATS or Redis server: topics with a contract.",
    "schemas": "The schemas of a hub, or of a NATS or Redis server, by name and version.",
    "dead-letters": "The dead letters that a hub keeps in its journal, or a NATS or Redis server.",
    "journal": "Inspect, replay, verify and maintain a journal.",
    "pipeline": "Build the tables of a warehouse with Spark, query them, and report on them.",
    "kernel": "Jupyter kernels: run notebooks, watch, share.",
    "keys": "Create, list and revoke the keys of a hub and its clients.",
}
"""Each text equals the first paragraph of the command's help."""
