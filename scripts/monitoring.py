"""Helper of scripts/monitoring.sh: compares the alerts, the dashboard, the runbook and the documentation with the metrics that the daemon has.

usage: monitoring.py queries                prints the queries of dashboard and runbook as a file of rules, for promtool
       monitoring.py check RULES URL        checks everything; RULES is the number of rules that promtool found in alerts.yml, URL is /metrics
"""

import json
import re
import sys
import urllib.request
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALERTS, TESTS, DASHBOARD = (ROOT / "deploy/monitoring" / name for name in ("alerts.yml", "alerts.test.yml", "grafana.json"))
RUNBOOK, DEPLOYMENT, SETTINGS = ROOT / "docs/runbook.md", ROOT / "docs/deployment.md", ROOT / "config/thresher.toml"
DESCRIPTIONS = ROOT / "src/telemetry/prometheus.rs"

# A proxy from the environment must not stand between two ports of this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# A metric in the code: `counter`, `gauge` or `histogram`, the names of its labels, and the first place that counts it.
Metric = namedtuple("Metric", "kind labels place")
# A rule of alerts.yml; `texts` are its labels and annotations.
Rule = namedtuple("Rule", "kind name expr texts place")

# Series that Prometheus itself makes.
OF_PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate", "severity", "job", "instance"}}
OF_SCRAPES = {"job", "instance"}
SERIES_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
# How the documentation says the type of a metric: by the end of its name.
KIND_BY_SUFFIX = {"_total": "counter", "_seconds": "histogram"}

WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan", "atan2"}
LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|\[[^\]]*\]|[a-zA-Z_:][\w:]*|[0-9][\w.]*|=~|!~|!=|[^\s\w]')

errors = []


def error(place, message):
    errors.append("error: {}: {}".format(place, message))


def name_of(path):
    return str(path.relative_to(ROOT))


# The code.


def rust_sources():
    for folder in ("src", "crates"):
        for path in sorted((ROOT / folder).rglob("*.rs")):
            yield path, path.read_text(encoding="utf-8")


def arguments(text, start):
    """The text from `start`, which is behind an opening parenthesis, to the parenthesis that closes it."""
    depth, at = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[start : at - 1]


def metrics_of_code(sources):
    """All metrics that the code counts or sets, by name."""
    found = {}
    for path, text in sources:
        for call in re.finditer(r"(?<!\w)(counter|gauge|histogram)!\(", text):
            kind, inside = call.group(1), arguments(text, call.end())
            place = "{}:{}".format(name_of(path), text.count("\n", 0, call.start()) + 1)
            name = re.match(r'\s*"(\w+)"', inside)
            if not name:
                error(place, "the name of a metric is not a string, so this script cannot check it")
                continue
            labels = frozenset(re.findall(r'"(\w+)"\s*=>', inside))
            known = found.setdefault(name.group(1), Metric(kind, labels, place))
            if (known.kind, known.labels) != (kind, labels):
                error(place, "{} has another type or other labels than in {}".format(name.group(1), known.place))
    return found


def check_descriptions(metrics):
    tables = re.findall(r"const (COUNTER|GAUGE|HISTOGRAM)S: (.*?)\n\];", DESCRIPTIONS.read_text(encoding="utf-8"), re.DOTALL)
    described = {name: kind.lower() for kind, rows in tables for name in re.findall(r'\(\s*"(\w+)",', rows)}
    for name, metric in metrics.items():
        if name not in described:
            error(metric.place, "{} has no description (# HELP) in {}".format(name, name_of(DESCRIPTIONS)))
        elif described[name] != metric.kind:
            error(metric.place, "{} is a {}, and {} describes a {}".format(name, metric.kind, name_of(DESCRIPTIONS), described[name]))
    for name in described.keys() - metrics.keys():
        error(name_of(DESCRIPTIONS), "{} is described, and no code counts it".format(name))


def check_scrape(url, metrics):
    """Checks that a running daemon has the metrics, types and labels that were found in the code, and no others."""
    with DIRECT.open(url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE "))
    if not kinds:
        error(url, "has no metrics")
    for name in kinds.keys() - metrics.keys():
        error(url, "has {}, which was not found in the code".format(name))
    for line in lines:
        sample = re.match(r"(\w+)(?:\{(.*)\})? ", line)
        if line.startswith("#") or not sample:
            continue
        name = sample.group(1)
        if name not in kinds:
            name = re.sub("_(bucket|sum|count)$", "", name)
        if name not in metrics:
            continue
        labels = set(re.findall(r'(\w+)="', sample.group(2) or "")) - {"le"}
        if (kinds[name], labels) != (metrics[name].kind, metrics[name].labels):
            error(url, "`{}` does not have the type and the labels of {}".format(line, metrics[name].place))
    return len(kinds)


# The documentation.


def check_documentation(metrics):
    section = DEPLOYMENT.read_text(encoding="utf-8").split("## Metrics\n", 1)[1].split("\n## ", 1)[0]
    documented = {}
    for line in section.splitlines():
        cell = re.match(r"\| (`.*?) \|", line)
        for name, labels in re.findall(r"`(\w+)(?:\{([^}]*)\})?`", cell.group(1) if cell else ""):
            documented.setdefault(name, set()).update(label.split("=")[0] for label in labels.split(",") if label)
    for name, metric in metrics.items():
        if name not in documented:
            error(name_of(DEPLOYMENT), "{} ({}) is missing in the tables of metrics".format(name, metric.place))
        elif documented[name] != metric.labels:
            error(name_of(DEPLOYMENT), "{} has the labels {} in {}".format(name, ", ".join(sorted(metric.labels)) or "(none)", metric.place))
        kind = next((kind for suffix, kind in KIND_BY_SUFFIX.items() if name.endswith(suffix)), "gauge")
        if kind != metric.kind:
            error(metric.place, "{} is a {}; by its name and {}, it would be a {}".format(name, metric.kind, name_of(DEPLOYMENT), kind))
    for name in documented.keys() - metrics.keys():
        if name not in (path.name for path in ALERTS.parent.iterdir()):
            error(name_of(DEPLOYMENT), "{} is in a table of metrics, and no code counts it".format(name))


# Queries.


def selectors(expr):
    """The names of all series in a query, each with its label matchers: (label, operator, value)."""
    tokens = TOKEN.findall(re.sub(r"(?m)#.*$", "", expr))
    found, at = [], 0
    while at < len(tokens):
        token, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if token.lower() in LABEL_LISTS and following == "(":
            at = tokens.index(")", at) + 1
        elif re.match(r"[a-zA-Z_:]", token) and token.lower() not in WORDS | LABEL_LISTS:
            if following == "(" or following in ("by", "without"):
                continue
            matchers = []
            if following == "{":
                end = tokens.index("}", at)
                inside = [token for token in tokens[at + 1 : end] if token != ","]
                matchers = [(label, operator, value[1:-1]) for label, operator, value in zip(*[iter(inside)] * 3)]
                at = end + 1
            found.append((token, matchers))
    return found


def check_query(place, expr, metrics, recorded, literals, needs_job=True):
    """Checks names, labels and values of a query. Values are those that the code writes as strings."""
    for name, matchers in selectors(expr):
        base = name if name in metrics else re.sub("({})$".format("|".join(SERIES_OF_HISTOGRAMS)), "", name)
        if name in recorded:
            continue
        if name in OF_PROMETHEUS:
            labels = OF_PROMETHEUS[name]
        elif base in metrics and (metrics[base].kind == "histogram") == (base != name):
            labels = metrics[base].labels | OF_SCRAPES | ({"le"} if name.endswith("_bucket") else set())
        else:
            error(place, "no code counts {}".format(name))
            continue
        if needs_job and "job" not in (label for label, _, _ in matchers) and name != "ALERTS":
            error(place, "{} is not limited to the job of Thresher".format(name))
        for label, _, value in matchers:
            if label not in labels:
                error(place, "{} has no label {}".format(name, label))
            elif label not in OF_SCRAPES | {"le"} and name not in OF_PROMETHEUS:
                for word in value.split("|"):
                    if word not in literals:
                        error(place, '{}: the code has no {} "{}"'.format(name, label, word))


# Alerts.


def rules():
    """The rules of alerts.yml. Reads the part of YAML that the file uses: a rule is a list item, `expr` is one line or a block after `|`."""
    found, block = [], None
    for number, line in enumerate(ALERTS.read_text(encoding="utf-8").splitlines(), 1):
        indent = len(line) - len(line.lstrip())
        if block is not None and (indent > block or not line.strip()):
            found[-1]["expr"] += line + "\n"
            continue
        block = None
        head = re.match(r"\s*- (alert|record): (\S+)$", line)
        pair = re.match(r"\s*(?:labels: \{ )?(\w+): (.*?)(?: \})?$", line)
        if head:
            found.append({"kind": head.group(1), "name": head.group(2), "expr": "", "place": "{}:{}".format(name_of(ALERTS), number)})
        elif found and pair and pair.group(1) == "expr":
            found[-1]["expr"], block = (pair.group(2), None) if pair.group(2) != "|" else ("", indent)
        elif found and pair:
            found[-1][pair.group(1)] = pair.group(2).strip('"')
    return [Rule(rule["kind"], rule["name"], rule["expr"], rule, rule["place"]) for rule in found]


def slug(alert):
    """ThresherIsDown: thresher-is-down, which is also the anchor of the heading `Thresher is down`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", alert).lower()


def check_alert(alert):
    for text in ("severity", "summary", "description", "runbook_url"):
        if not alert.texts.get(text):
            error(alert.place, "{} has no {}".format(alert.name, text))
    url = "{}#{}".format(name_of(RUNBOOK), slug(alert.name))
    if alert.texts.get("runbook_url") != url:
        error(alert.place, "the runbook_url of {} is not {}".format(alert.name, url))


def check_tests(alerts):
    """Every alert has a test in which it fires, and one in which it does not."""
    outcomes = {}
    for alert, samples in re.findall(r'alertname="(\w+)".*\n.*\n\s*exp_samples: \[(.*)\]', TESTS.read_text(encoding="utf-8")):
        outcomes.setdefault(alert, set()).add(bool(samples))
    for alert in alerts:
        if True not in outcomes.get(alert.name, ()):
            error(name_of(TESTS), "no test in which {} fires".format(alert.name))
        if False not in outcomes.get(alert.name, ()):
            error(name_of(TESTS), "no test in which {} does not fire".format(alert.name))


# The runbook.


def check_runbook(alerts, source):
    text = RUNBOOK.read_text(encoding="utf-8")
    anchors = {heading.lower().replace(" ", "-") for heading in re.findall(r"(?m)^## (Thresher .*)$", text)}
    slugs = {slug(alert.name) for alert in alerts}
    for missing in sorted(slugs - anchors):
        error(name_of(RUNBOOK), "no section for the alert #{}".format(missing))
    for stale in sorted(anchors - slugs):
        error(name_of(RUNBOOK), "the section #{} has no alert".format(stale))
    for link in set(re.findall(r"\]\(#([\w-]+)\)", text)) - anchors:
        error(name_of(RUNBOOK), "a link leads to #{}, which does not exist".format(link))
    # Messages that the reader looks for in the log.
    for command in re.findall(r"`log \| ([^`]*)`", text):
        for message in re.findall(r"'([^']+)'", command):
            if not message.startswith('"') and message not in source:
                error(name_of(RUNBOOK), "no log message contains '{}'".format(message))


def runbook_queries():
    """The queries of the runbook, and the metrics that it names; a metric without an operator may lack its job."""
    words = re.findall(r"`([^`\n]+)`", RUNBOOK.read_text(encoding="utf-8").replace("\n  ", " "))
    queries = [word for word in words if 'job="' in word and not word.startswith("log |")]
    return queries, [word for word in words if re.match(r'[\w:]+(_total|:\w+|\{\w+="[^"]*"\})$', word) and word not in queries]


def check_settings():
    """Settings that the alerts and the runbook name exist."""
    known, section = set(), ""
    for line in SETTINGS.read_text(encoding="utf-8").splitlines():
        head, key = re.match(r"\[(\w+)\]", line), re.match(r"(\w+) =", line)
        section = head.group(1) if head else section
        if key:
            known.add("{}.{}".format(section, key.group(1)))
    sections = {setting.split(".")[0] for setting in known}
    for path in (ALERTS, RUNBOOK, DASHBOARD):
        for setting in set(re.findall(r"\b[a-z]\w*\.[a-z]\w*\b", path.read_text(encoding="utf-8"))):
            if setting.split(".")[0] in sections and setting not in known and not setting.endswith(".md"):
                error(name_of(path), "{} has no setting {}".format(name_of(SETTINGS), setting))


# The dashboard.


def dashboard_queries():
    """Each query of the dashboard with its place. The variables of Grafana have values, so that promtool and this script can read them."""
    try:
        dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    except ValueError as cause:
        sys.exit("error: {} is not JSON: {}".format(name_of(DASHBOARD), cause))
    found = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            found.append(("{}, panel {!r}".format(name_of(DASHBOARD), panel["title"]), target["expr"]))
    for variable in dashboard["templating"]["list"]:
        values = re.match(r"label_values\((.*), \w+\)$", variable.get("definition", ""))
        if values:
            found.append(("{}, variable {}".format(name_of(DASHBOARD), variable["name"]), values.group(1)))
    plain = lambda expr: expr.replace("$__rate_interval", "5m").replace("$__range", "1h").replace("$instance", ".*").replace("$job", "thresher")
    return dashboard, [(place, plain(expr)) for place, expr in found]


def check_dashboard(dashboard):
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    if "datasource" not in (variable["type"] for variable in dashboard["templating"]["list"]):
        error(name_of(DASHBOARD), "the data source is not a variable")
    if len({panel["id"] for panel in dashboard["panels"]}) != len(dashboard["panels"]):
        error(name_of(DASHBOARD), "two panels have the same id")
    for panel in panels:
        place = "{}, panel {!r}".format(name_of(DASHBOARD), panel["title"])
        if not panel.get("description"):
            error(place, "has no description")
        if not panel["fieldConfig"]["defaults"].get("unit"):
            error(place, "has no unit")
        for part in [panel, *panel["targets"]]:
            if part["datasource"]["uid"] != "${datasource}":
                error(place, "does not use the variable of the data source")
    return len(panels)


def queries():
    """Prints all queries of the dashboard and the runbook as rules. A file of rules is YAML, and JSON is YAML."""
    found = [expr for _, expr in dashboard_queries()[1]] + runbook_queries()[0]
    print(json.dumps({"groups": [{"name": "queries", "rules": [{"record": "query:{}".format(i), "expr": e} for i, e in enumerate(found)]}]}))


def check(rule_count, url):
    sources = list(rust_sources())
    source = "\n".join(text for _, text in sources)
    literals = set(re.findall(r'"([^"\\\n]*)"', source))
    metrics = metrics_of_code(sources)
    check_descriptions(metrics)
    check_documentation(metrics)
    scraped = check_scrape(url, metrics)

    found = rules()
    alerts = [rule for rule in found if rule.kind == "alert"]
    recorded = {rule.name for rule in found if rule.kind == "record"}
    if len(found) != int(rule_count):
        error(name_of(ALERTS), "promtool finds {} rules, and this script {}: write them as the others are written".format(rule_count, len(found)))
    dashboard, shown = dashboard_queries()
    panels = check_dashboard(dashboard)
    for place, expr in [(rule.place, rule.expr) for rule in found] + shown:
        # The variable `job` of the dashboard asks which jobs there are.
        check_query(place, expr, metrics, recorded, literals, needs_job=not place.endswith("variable job"))
    for alert in alerts:
        check_alert(alert)
    check_tests(alerts)
    check_runbook(alerts, source)
    for query in sum(runbook_queries(), []):
        check_query(name_of(RUNBOOK), query, metrics, recorded, literals, needs_job=False)
    check_settings()

    if errors:
        sys.exit("\n".join(errors))
    print("monitoring ok: {} metrics ({} of them scraped), {} alerts, {} panels".format(len(metrics), scraped, len(alerts), panels))


if __name__ == "__main__":
    {"queries": queries, "check": check}[sys.argv[1]](*sys.argv[2:])
