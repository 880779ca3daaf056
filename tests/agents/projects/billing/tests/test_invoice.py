from datetime import date
from decimal import Decimal

import pytest
from billing.invoice import Invoice
from billing.tax import UnknownRate, rate


def invoice(country="DE", day=date(2026, 3, 2), discount="0"):
    made = Invoice("C-1042", country, day, discount=Decimal(discount))
    made.add("Plan Team, March", 4900, 3)
    made.add("Storage 50 GB", 1250)
    return made


def test_net():
    assert invoice().net == 15950


def test_total_is_rounded_once():
    made = invoice(discount="0.03")
    # net 15471.5, tax 2939.585: the sum is 18411.085
    assert made.total == 18411


def test_total_of_a_credit():
    made = Invoice("C-1042", "DE", date(2026, 3, 2))
    made.add("Credit of February", -2450)
    assert made.total == -2916


def test_text_has_the_total():
    assert "189.81 EUR" in invoice().text()


@pytest.mark.parametrize(
    ("country", "day", "expected"),
    [
        ("DE", date(2020, 6, 30), "0.19"),
        ("DE", date(2020, 7, 1), "0.16"),
        ("DE", date(2020, 12, 31), "0.16"),
        ("DE", date(2021, 1, 1), "0.19"),
        ("CH", date(2023, 12, 31), "0.077"),
        ("CH", date(2024, 1, 1), "0.081"),
        ("FI", date(2024, 8, 31), "0.24"),
        ("FI", date(2024, 9, 1), "0.255"),
    ],
)
def test_rate_on_the_first_day(country, day, expected):
    assert rate(country, day) == Decimal(expected)


def test_unknown_country():
    with pytest.raises(UnknownRate, match="no rate for XX"):
        rate("XX", date(2026, 1, 1))
