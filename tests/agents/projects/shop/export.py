"""Exports tenants in parallel into files. Some tenants have faulty rows, and one target is full.

usage: export.py FOLDER
"""

import concurrent.futures
import json
import logging
import random
import sys
import time
from pathlib import Path

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(threadName)s %(message)s")
log = logging.getLogger()
random.seed(21)
FOLDER = Path(sys.argv[1])


def rows(tenant):
    for number in range(400):
        total = None if tenant == "t-0417" and number == 233 else round(random.random() * 900, 2)
        yield {"invoice": f"{tenant}-{number:04d}", "total": total}


def export(tenant):
    log.info("tenant=%s export started", tenant)
    path = Path("/dev/full") if tenant == "t-0431" else FOLDER / f"{tenant}.jsonl"
    count = 0
    with path.open("w") as file:
        for row in rows(tenant):
            row["gross"] = row["total"] * 1.19
            file.write(json.dumps(row) + "\n")
            count += 1
            if count % 100 == 0:
                file.flush()
                log.info("tenant=%s rows=%d", tenant, count)
            time.sleep(0.0004)
    log.info("tenant=%s export finished rows=%d", tenant, count)


def main():
    log.info("export run 2026-11-26 started, tenants=48, workers=4, target=/srv/exports")
    log.warning("retention of /srv/exports is 0 days: files of former runs are not deleted")
    failed = {}
    with concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="worker") as pool:
        runs = {pool.submit(export, f"t-{number:04d}"): f"t-{number:04d}" for number in range(400, 448)}
        for run in concurrent.futures.as_completed(runs):
            if run.exception():
                failed[runs[run]] = run.exception()
                log.error("tenant=%s export failed", runs[run], exc_info=run.exception())
    log.info("export run finished: %d of %d tenants exported", len(runs) - len(failed), len(runs))
    log.error("run marked as incomplete; the upload to the tax office is held back until all tenants are exported")
    return 1


sys.exit(main())
