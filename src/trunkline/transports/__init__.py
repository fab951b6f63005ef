"""Transports: thin shells that carry frames between a hub and its clients. Anybody can write one: see transport.py."""

from trunkline.transports.schemes import register

__all__ = ["register"]
