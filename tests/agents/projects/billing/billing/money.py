"""Amounts of money in cents."""

from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Union

Number = Union[int, str, Decimal]


def round_cents(amount: Number) -> int:
    """Rounds an amount in cents, half up, as the tax office does."""
    return int(Decimal(amount).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def show(cents: int, currency: str = "EUR") -> str:
    sign = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    return f"{sign}{whole:,}.{rest:02d} {currency}"


def parse(text: str) -> int:
    """Cents of "1,234.50"."""
    return round_cents(Decimal(text.replace(",", "")) * 100)
