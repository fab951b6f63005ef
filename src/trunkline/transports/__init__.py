"""Transports: thin shells that carry frames between a hub and its clients. To write your own, see transport.py."""

from trunkline.transports.schemes import register

__all__ = ["register"]
