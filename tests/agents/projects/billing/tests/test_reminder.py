from datetime import date

import pytest
from billing.reminder import due, next_letter

SENT = date(2026, 2, 1)


@pytest.mark.parametrize(("letters", "day", "expected"), [(0, 14, False), (0, 15, True), (1, 28, False), (2, 20, False)])
def test_due(letters, day, expected):
    assert due(SENT, False, False, letters, date(2026, 2, day)) is expected


def test_not_due_if_paid():
    assert not due(SENT, True, False, 0, date(2026, 3, 31))


def test_not_due_if_disputed():
    assert not due(SENT, False, True, 0, date(2026, 3, 31))


def test_next_letter():
    assert next_letter(SENT, 1) == date(2026, 3, 1)
