import rich.console
import rich.table
import rich.markdown
import rich.progress


def table(orders):
    made = rich.table.Table("number", "customer", "total")
    for order in orders:
        made.add_row(str(order["number"]), order["customer"], f"{order['total'] / 100:.2f}")
    return made
