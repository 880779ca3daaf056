"""Orders of the shop on the command line."""

from .report import table
from .client import fetch

__all__ = ["fetch", "table"]
