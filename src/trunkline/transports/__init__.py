"""Transports carry frames between a hub and its clients. The interface for new transports is in transport.py."""

from trunkline.transports.schemes import register

__all__ = ["register"]
