// Three built-in examples. All people, places and firms are invented.
import type { Chunk } from "./api";

export interface Example {
  name: string;
  /** What there is to see. */
  about: string;
  query: string;
  chunks: Chunk[];
  /** An answer for the Attribute view. One of its sentences is wrong, and a quotation is if there is one. */
  answer: string;
}

export const EXAMPLES: Example[] = [
  {
    name: "Two documents",
    about: "Prose: the answer needs one sentence each of two documents.",
    query: "Which firm repaired the bridge that the ferry to Sorrel Island passes under?",
    chunks: [
      {
        id: "ferry",
        title: "Ferry to Sorrel Island",
        text: "The ferry to Sorrel Island leaves Marrow Quay four times a day. Shortly before the open sea it passes under the Halden Bridge, where passengers on the upper deck are asked to sit down. The crossing takes fifty minutes in calm weather. Bicycles travel free of charge, but there is no space for cars.",
      },
      {
        id: "island",
        title: "Sorrel Island",
        text: "Sorrel Island has about three hundred inhabitants and one school. Most of them keep sheep or build small wooden boats. In winter the power line from the mainland often fails, so every house has a stove. The highest point of the island is a hill of 94 metres with an old signal mast.",
      },
      {
        id: "bridge",
        title: "Halden Bridge",
        text: "The Halden Bridge was opened in 1931 and carries a single railway track over the mouth of the Tarn. Salt water had eaten into its piers by the end of the century. Between 2014 and 2016 it was repaired by Brock & Daughters, a family firm from Ostwick, without closing the line for a single day. Its lamps are still lit by hand on the first Sunday of Advent.",
      },
      {
        id: "quay",
        title: "Marrow Quay",
        text: "Marrow Quay was built for herring boats and is now used by yachts and the island ferry. The old ice house sells coffee. A storm in 2009 damaged the eastern steps, which the town repaired itself.",
      },
      {
        id: "lamond",
        title: "Lamond Civil Works",
        text: "Lamond Civil Works repairs road bridges in the north of the county. The firm has forty employees and a yard beside the canal in Ostwick. Its best-known work is the swing bridge at Pell, which was rebuilt after a barge had struck it.",
      },
      {
        id: "weather",
        title: "Weather on the coast",
        text: "Fog is common on this coast from April to June, when warm air meets the cold sea. Gales come mostly from the south-west. The harbour office hangs out a black cone when small boats should stay in port.",
      },
    ],
    answer:
      "The ferry to Sorrel Island passes under the Halden Bridge. Brock & Daughters repaired the bridge between 2014 and 2016 “without closing the line for a single week”. It was opened in 1913.",
  },
  {
    name: "An incident",
    about: "A log, code and JSON: each is divided in its own way, and what is kept of JSON still parses.",
    query: "Why did the payment of order 88213 fail?",
    chunks: [
      {
        title: "checkout.log",
        text: `2031-05-14 09:12:01 INFO  [o-88197] payment accepted in 212 ms
2031-05-14 09:12:03 INFO  health check passed
2031-05-14 09:12:07 WARN  [o-88213] card vault: connection pool "vault-eu" is empty, 0 of 16 free
2031-05-14 09:12:09 INFO  [o-88214] basket saved
2031-05-14 09:12:12 ERROR [o-88213] payment failed: no answer from the card vault within 5 s
Traceback (most recent call last):
  File "payments/charge.py", line 41, in charge
    token = vault.token(order.card, timeout_s=5)
VaultTimeout: vault-eu
2031-05-14 09:12:13 INFO  [o-88213] order returned to the basket
2031-05-14 09:12:15 INFO  nightly report written to disk`,
      },
      {
        title: "payments/charge.py",
        text: `import vault
from orders import Order, Refund


def charge(order: Order) -> str:
    """Charges the card of an order and returns the receipt number."""
    token = vault.token(order.card, timeout_s=5)
    if order.total <= 0:
        raise ValueError("nothing to charge")
    return vault.charge(token, order.total)


def refund(order: Order, reason: str) -> Refund:
    """Pays an order back, at most once."""
    if order.refunded:
        return order.refund
    return vault.refund(order.receipt, reason)


def receipt_text(receipt: str) -> str:
    return f"Thank you for your order. Receipt {receipt}."`,
      },
      {
        title: "pools.json",
        text: `{"service":"checkout","updated":"2031-05-13T22:40:00Z","pools":[{"name":"vault-eu","target":"card vault","connections_max":16,"idle_s":30},{"name":"vault-us","target":"card vault","connections_max":64,"idle_s":30},{"name":"catalogue","target":"product search","connections_max":128,"idle_s":120}]}`,
      },
      {
        title: "Release notes of 13 May",
        text: "The product search returns results in pages of fifty. The size of the connection pool vault-eu was lowered from 64 to 16, because most cards are now stored in the vault of the bank. The colour of the checkout button follows the theme of the shop.",
      },
      {
        title: "On-call handbook",
        text: "Whoever is on call answers within ten minutes. Write down what you saw before you restart anything. The coffee machine on the second floor is repaired by the landlord.",
      },
    ],
    answer:
      "The payment of order 88213 failed because the card vault did not answer within 5 s. The connection pool vault-eu was empty, 0 of 16 free. On 13 May the size of the pool was lowered from 128 to 16.",
  },
  {
    name: "A table and a chat",
    about: "A table keeps its header, and an answer in a chat keeps its question.",
    query: "How much storage does the Granary plan have, and which discount did Priya promise?",
    chunks: [
      {
        title: "plans.csv",
        text: `plan,price per seat,seats,single sign-on,storage,support
Seedling,0 €,3,no,2 GB,forum
Orchard,9 €,25,no,50 GB,e-mail
Granary,17 €,200,yes,500 GB,e-mail and telephone
Harvest,29 €,unlimited,yes,5 TB,named engineer`,
      },
      {
        title: "Chat with Wendt Tools",
        text: `[10:02] Oskar: Hello, we have 40 seats and look for something bigger.
[10:03] Priya: Welcome back! What is missing for you?
[10:03] Oskar: Mostly more storage, and our IT wants single sign-on.
[10:05] Priya: Then Granary would fit.
[10:06] Oskar: Could you give us a discount for the first year?
[10:09] Priya: Yes, fifteen per cent, if you sign by 30 September.
[10:10] Oskar: I will ask our finance team.
[10:12] Priya: Take your time. Shall I send you the data sheet?
[10:12] Oskar: Please do.`,
      },
      {
        title: "Support hours",
        text: "<h2>Support hours</h2><table><tr><th>Day</th><th>Hours</th></tr><tr><td>Monday to Friday</td><td>8 to 18</td></tr><tr><td>Saturday</td><td>9 to 13</td></tr></table><p>On public holidays only named engineers answer.</p>",
      },
      {
        title: "Migration guide",
        text: `# Moving to another plan

## Before you begin

Export your seats as a list. The export takes a few minutes.

## Change the plan

- Open the account page.
- Choose the new plan.
- Confirm the number of seats.

Old invoices stay available for ten years.`,
      },
    ],
    answer:
      "The Granary plan has 500 GB of storage. Priya promised fifteen per cent if they sign by 30 September. The plan has 250 seats.",
  },
];
