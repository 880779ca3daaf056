"""Writes the sales of nine shops, and the dictionary of the columns, below a folder.

usage: sales.py FOLDER
"""

import csv
import random
import sys
from datetime import date, timedelta
from pathlib import Path

random.seed(11)
FOLDER = Path(sys.argv[1])
SHOPS = ["Alta", "Bodo", "Eide", "Fauske", "Gol", "Hamar", "Molde", "Narvik", "Voss"]
PRODUCTS = [("lamp", 39.0), ("chair", 129.0), ("rug", 249.0), ("shelf", 89.0), ("mug", 9.5)]


def main():
    rows = []
    for at in range(900):
        day = date(2026, 7, 1) + timedelta(days=at // 10)
        shop = SHOPS[at * 7 % len(SHOPS)]
        product, price = random.choice(PRODUCTS)
        count = random.randrange(1, 9)
        if shop == "Gol" and day >= date(2026, 9, 1):
            count = max(1, count // 4)
        net = round(price * count * (0.85 if day.weekday() == 5 else 1), 2)
        currency = "SEK" if at in (411, 412, 700) else "NOK"
        returned = "yes" if random.random() < 0.06 else "no"
        rows.append([f"S-{10000 + at}", day.isoformat(), shop, product, count, f"{net:.2f}", currency, returned])
    rows[333][5] = "-129.00"
    rows[512][2] = "gol "
    rows[640][4] = ""
    with (FOLDER / "sales.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["id", "day", "shop", "product", "count", "net", "currency", "returned"], *rows])


main()
