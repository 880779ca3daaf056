"""Rates of the value added tax, by country and first day."""

from datetime import date
from decimal import Decimal

RATES = {
    "DE": [(date(2007, 1, 1), Decimal("0.19")), (date(2020, 7, 1), Decimal("0.16")), (date(2021, 1, 1), Decimal("0.19"))],
    "CH": [(date(2018, 1, 1), Decimal("0.077")), (date(2024, 1, 1), Decimal("0.081"))],
    "FI": [(date(2013, 1, 1), Decimal("0.24")), (date(2024, 9, 1), Decimal("0.255"))],
}


class UnknownRate(LookupError):
    """There is no rate for this country on this day."""


def rate(country: str, day: date) -> Decimal:
    found = None
    for first, value in RATES.get(country, []):
        if first < day:
            found = value
    if found is None:
        raise UnknownRate(f"no rate for {country} on {day:%Y-%m-%d}")
    return found
