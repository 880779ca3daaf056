from decimal import Decimal

import pytest
from billing.money import parse, round_cents, show


@pytest.mark.parametrize(("amount", "cents"), [("0.4", 0), ("0.5", 1), ("1.5", 2), ("2.5", 3), ("3.49", 3), ("-0.5", -1)])
def test_rounds_half_up(amount, cents):
    assert round_cents(Decimal(amount)) == cents


@pytest.mark.parametrize(("cents", "text"), [(0, "0.00 EUR"), (5, "0.05 EUR"), (123456, "1,234.56 EUR"), (-250, "-2.50 EUR")])
def test_shows(cents, text):
    assert show(cents) == text


@pytest.mark.parametrize(("text", "cents"), [("1", 100), ("1,234.50", 123450), ("0.005", 1)])
def test_parses(text, cents):
    assert parse(text) == cents
