"""Which unpaid invoices get a letter, and when."""

from datetime import date, timedelta

STEPS = [14, 28, 42]


def due(sent: date, paid: bool, disputed: bool, letters: int, now: date) -> bool:
    if paid or letters >= len(STEPS):
        return False
    return now >= sent + timedelta(days=STEPS[letters])


def next_letter(sent: date, letters: int) -> date:
    return sent + timedelta(days=STEPS[letters])
