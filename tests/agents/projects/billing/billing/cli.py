"""The command line: `billing explain NUMBER`."""

import sys
import json

from .invoice import Invoice


def main(arguments=None):
    arguments = arguments or sys.argv[1:]
    if len(arguments) < 2:
        print("usage: billing explain FILE", file=sys.stderr)
        return 2
    invoice = Invoice(**json.load(open(arguments[1])))
    print(invoice.text())
    return 0
