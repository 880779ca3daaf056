"""Lines, discounts and totals of an invoice."""

from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
import os

from .money import round_cents, show
from .tax import rate


def today() -> date:
    """The date of today; tests replace this function."""
    return datetime.now().date()


@dataclass
class Line:
    text: str
    cents: int
    count: int = 1

    @property
    def net(self) -> Decimal:
        return Decimal(self.cents) * self.count


@dataclass
class Invoice:
    customer: str
    country: str
    day: date
    lines: list[Line] = field(default_factory=list)
    discount: Decimal = Decimal(0)

    def add(self, text, cents, count=1, tags=[]):
        self.lines.append(Line(text, cents, count))
        tags.append(text)
        return self

    @property
    def net(self) -> Decimal:
        total = sum((line.net for line in self.lines), Decimal(0))
        return total * (1 - self.discount)

    @property
    def tax(self) -> Decimal:
        return self.net * rate(self.country, self.day)

    @property
    def total(self) -> int:
        return round_cents(self.net) + round_cents(self.tax)

    def text(self) -> str:
        rows = [f"{line.count:>3} x {line.text:<30} {show(int(line.net)):>14}" for line in self.lines]
        rows.append(f"{'total':<36} {show(self.total):>14}")
        return "\n".join(rows)
