"""A small shop over HTTP, with a stock in SQLite. A job that rebuilds the index of the stock holds its lock far too long.

usage: server.py FOLDER SECONDS    (prints its port; writes app.log and access.log below FOLDER)
"""

import concurrent.futures
import http.client
import http.server
import json
import logging
import random
import sqlite3
import sys
import threading
import time
from pathlib import Path

FOLDER, SECONDS = Path(sys.argv[1]), float(sys.argv[2])
STOCK = FOLDER / "stock.db"
random.seed(7)

logging.basicConfig(
    filename=FOLDER / "app.log",
    level=logging.DEBUG,
    format="%(asctime)s %(levelname)-7s [%(threadName)s] %(name)s: %(message)s",
)
access = logging.getLogger("access")
access.propagate = False
handler = logging.FileHandler(FOLDER / "access.log")
handler.setFormatter(logging.Formatter("%(message)s"))
access.addHandler(handler)
checkout, pool, jobs, cache = (logging.getLogger(name) for name in ("shop.checkout", "shop.pool", "shop.jobs", "shop.cache"))


class Shop(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200, {"path": self.path, "items": [{"sku": f"SKU-{at}", "stock": at * 3 % 17} for at in range(4)]})
        cache.debug("get %s hit=%s", self.path, self.path.endswith(("1", "4", "7")))

    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        order = json.loads(self.rfile.read(length) or b"{}")
        number = order.get("order", 0)
        try:
            with sqlite3.connect(STOCK, timeout=0.4) as stock:
                stock.execute("UPDATE stock SET count = count - 1 WHERE sku = ?", (order.get("sku", "SKU-1"),))
            checkout.info("order %s reserved, payment accepted", number)
            self.reply(200, {"order": number, "state": "paid"})
        except sqlite3.OperationalError as error:
            checkout.error("order %s failed after 0.4 s", number, exc_info=error)
            self.reply(503, {"error": "stock_unavailable", "message": "the stock cannot be updated", "retry": True})

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if status == 503:
            self.send_header("retry-after", "1")
        self.end_headers()
        self.wfile.write(data)
        stamp = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
        agent = self.headers.get("user-agent", "-")
        address = self.headers.get("x-forwarded-for", "127.0.0.1")
        access.info('%s - - [%s] "%s" %d %d "-" "%s"', address, stamp, self.requestline, status, len(data), agent)

    def log_message(self, *_):
        pass


def reindex(until):
    """Begins a transaction that writes, and keeps it while it reads a supplier's slow list."""
    time.sleep(SECONDS * 0.35)
    jobs.info("reindex started by cron (job 118, supplier=northgate)")
    stock = sqlite3.connect(STOCK, isolation_level=None)
    stock.execute("BEGIN IMMEDIATE")
    page, began = 0, time.monotonic()
    while time.monotonic() < until - SECONDS * 0.2:
        page += 1
        time.sleep(SECONDS * 0.06)
        if page == 3:
            jobs.warning("reindex: page %d of supplier northgate took 1.9 s (limit 0.5 s), the transaction stays open", page)
        jobs.debug("reindex: page %d read", page)
    stock.execute("ROLLBACK")
    jobs.error("reindex: supplier northgate answered 429, rolled back after %.1f s; next try in 15 min", time.monotonic() - began)


def visit(port, at):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    agent = random.choice(["Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1)", "shop-app/4.11", "kube-probe/1.31"])
    headers = {"user-agent": agent, "x-forwarded-for": f"203.0.113.{random.randrange(4, 250)}"}
    if agent.startswith("kube-probe"):
        connection.request("GET", "/healthz", headers=headers)
    elif random.random() < 0.3:
        connection.request("POST", "/api/checkout", json.dumps({"order": 88000 + at, "sku": f"SKU-{at % 9}"}), headers=headers)
    else:
        connection.request("GET", random.choice(["/api/items/%d", "/api/basket/%d", "/static/app.%d.js"]) % random.randrange(9), headers=headers)
    connection.getresponse().read()


def main():
    with sqlite3.connect(STOCK) as stock:
        stock.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, count INTEGER)")
        stock.executemany("INSERT INTO stock VALUES (?, 500)", [(f"SKU-{at}",) for at in range(9)])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, daemon=True, name="acceptor").start()
    print(server.server_port, flush=True)
    logging.info("shop 4.11.2 listens on 127.0.0.1:8080, pool of 8 workers, stock at %s", STOCK)
    until = time.monotonic() + SECONDS
    threading.Thread(target=reindex, args=(until,), name="cron", daemon=True).start()
    with concurrent.futures.ThreadPoolExecutor(24, thread_name_prefix="client") as clients:
        for at in range(260):
            time.sleep(SECONDS / 260)
            clients.submit(visit, server.server_port, at)
    pool.info("shutting down, 0 requests in flight")


main()
