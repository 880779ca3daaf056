"""Checks the manifests of this directory. scripts/kubernetes.sh runs it.

It renders them with kustomize, alone and in the combinations that docs/install-cluster.md describes. It checks every object against the
strict schemas of Kubernetes (unknown fields are errors), and what schemas cannot see: names that one object uses and another one has to
define, and the Pod Security Standard "restricted". Then it starts the daemon as the pods would: with the settings, variables and Secrets of
the manifests, and with redis-server in the place of Valkey, until the probes of the manifests succeed. At the end it breaks manifests on
purpose and requires that each error is found.
"""

import contextlib
import copy
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import kubernetes_validate
import yaml

HERE = Path(__file__).resolve().parent
# The oldest version with every field that is used (lifecycle.preStop.sleep), and the newest one of requirements.txt.
VERSIONS = ["1.30", "1.37"]
BUILDS = {
    "base": ("base", []),
    "base, gpu": ("base", ["gpu"]),
    "base, valkey": ("base", ["valkey"]),
    "example": ("example", []),
    "sidecar": ("sidecar", []),
    "sidecar, valkey, monitor": ("sidecar", ["valkey", "monitor"]),
}
# Objects that are not part of Kubernetes have no schema here: the fields that may be used, by path.
CUSTOM = {
    "PodMonitor": re.compile(
        r"(apiVersion|kind|metadata(\.(name|namespace))?|spec(\.selector(\.matchExpressions(\.(key|operator|values))?)?"
        r"|\.podMetricsEndpoints(\.(port|path|interval|relabelings(\.(targetLabel|replacement))?))?)?)$"
    )
}
# Policies of components for one of the two arrangements: they select nothing next to the other one.
OF_ONE_ARRANGEMENT = ["NetworkPolicy thresher-to-valkey", "NetworkPolicy retriever"]
PROGRAM = "/usr/bin/thresher"
RUN_S_MAX = 120
# A proxy from the environment must not stand between two ports of this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Mistake(Exception):
    """Something in the manifests is wrong."""


def main(thresher, installed, redis_server):
    """Checks everything. `installed` is the folder that is /opt/thresher in the image."""
    builds = {name: render(*parts) for name, parts in BUILDS.items()}
    secrets = {s["metadata"]["name"]: s for s in read(HERE / "secrets.example.yaml")}
    for secret in secrets.values():
        check_schema(secret)
    for name, objects in builds.items():
        check(objects, secrets)
        print("{}: {} objects fit Kubernetes {}".format(name, len(objects), " and ".join(VERSIONS)))
    files = {"installed": Path(installed).resolve(), "thresher": Path(thresher).resolve()}
    for name in ["base", "sidecar", "sidecar, valkey, monitor", "example"]:
        metrics = run(builds[name], secrets, files, redis_server)
        print("{}: the daemon is ready with these settings".format(name))
    check_autoscaler(builds["example"], metrics)
    print("the autoscaler's metric is one that the daemon has")
    check_the_checks(builds["example"], builds["sidecar"], secrets, files)


# --- rendering ---


def read(path):
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def render(base, components):
    """The objects of `base` with `components`."""
    with tempfile.TemporaryDirectory() as work:
        folder = HERE / base
        if components:
            folder = Path(work).resolve()
            # kustomize refuses absolute paths.
            names = {"resources": [base], "components": ["components/" + name for name in components]}
            names = {field: [os.path.relpath(HERE / name, folder) for name in paths] for field, paths in names.items()}
            (folder / "kustomization.yaml").write_text(yaml.safe_dump(names), encoding="utf-8")
        command = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
        done = subprocess.run(command + [str(folder)], capture_output=True, text=True)
        if done.returncode:
            raise Mistake("{}: {}".format(base, done.stderr.strip()))
        return [document for document in yaml.safe_load_all(done.stdout) if document]


# --- checks without a daemon ---


def check(objects, secrets):
    for one in objects:
        check_schema(one)
    for workload in workloads(objects):
        check_names(workload, objects, secrets)
        check_restricted(workload)
    labels = [w["spec"]["template"]["metadata"]["labels"] for w in workloads(objects)]
    for one in objects:
        selector = {"Service": ["selector"], "PodDisruptionBudget": ["selector", "matchLabels"], "NetworkPolicy": ["podSelector", "matchLabels"]}
        wanted = one.get("spec", {})
        for field in selector.get(one["kind"], []):
            wanted = wanted[field]
        if one["kind"] in selector and title(one) not in OF_ONE_ARRANGEMENT and not any(wanted.items() <= have.items() for have in labels):
            raise Mistake("{} selects no pod: {}".format(title(one), wanted))
    ports = {port["name"] for w in workloads(objects) for c in containers(w["spec"]["template"]["spec"]) for port in c.get("ports", [])}
    for one in objects:
        for endpoint in one["spec"]["podMetricsEndpoints"] if one["kind"] == "PodMonitor" else []:
            if endpoint["port"] not in ports:
                raise Mistake("{}: no container has the port {}".format(title(one), endpoint["port"]))


def check_schema(one):
    if one["kind"] in CUSTOM:
        for path in paths(one):
            if not CUSTOM[one["kind"]].match(path):
                raise Mistake("{}: unknown field {}".format(title(one), path))
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            where = ".".join(str(part) for part in error.path)
            raise Mistake("{} does not fit Kubernetes {}: {}: {}".format(title(one), version, where, error.message)) from None
        except kubernetes_validate.SchemaNotFoundError as error:
            raise Mistake("{}: {}".format(title(one), error.message)) from None


def paths(node, prefix=""):
    """The path of every field, without the indices of lists."""
    if isinstance(node, list):
        for item in node:
            yield from paths(item, prefix)
    elif isinstance(node, dict):
        for name, value in node.items():
            yield prefix + name
            yield from paths(value, prefix + name + ".")


def check_names(workload, objects, secrets):
    """Names that schemas do not connect: volumes, ports, ConfigMaps, and Secrets with their keys."""
    pod = workload["spec"]["template"]["spec"]
    claims = workload["spec"].get("volumeClaimTemplates", [])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    have = set(volumes) | {claim["metadata"]["name"] for claim in claims}
    for container in containers(pod):
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in have:
                raise Mistake("{}: no volume {}".format(title(workload), mount["name"]))
        ports = {port["name"] for port in container.get("ports", [])}
        for field in ["startupProbe", "readinessProbe", "livenessProbe"]:
            probe = container.get(field, {})
            if "exec" in probe and probe["exec"]["command"][0] != PROGRAM:
                raise Mistake("{}: {} does not run {}".format(title(workload), field, PROGRAM))
            for kind in ["httpGet", "tcpSocket"]:
                if kind in probe and probe[kind]["port"] not in ports:
                    raise Mistake("{}: {} names no port of the container".format(title(workload), field))
    maps = {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
    for volume in volumes.values():
        if "configMap" in volume and volume["configMap"]["name"] not in maps:
            raise Mistake("{}: no ConfigMap {}".format(title(workload), volume["configMap"]["name"]))
        if "secret" in volume:
            secret = secrets.get(volume["secret"]["secretName"])
            if secret is None:
                raise Mistake("secrets.example.yaml has no Secret {}".format(volume["secret"]["secretName"]))
            for item in volume["secret"].get("items", []):
                if item["key"] not in secret["stringData"]:
                    raise Mistake("secrets.example.yaml: {} has no {}".format(title(secret), item["key"]))


def check_restricted(workload):
    """The Pod Security Standard "restricted", as far as these pods could break it, and a read-only root for the containers of this repository."""
    pod = workload["spec"]["template"]["spec"]
    of_pod = pod.get("securityContext", {})
    if of_pod.get("runAsNonRoot") is not True or of_pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        raise Mistake("{} is not restricted: runAsNonRoot or seccompProfile".format(title(workload)))
    for container in containers(pod):
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities") != {"drop": ["ALL"]}:
            raise Mistake("{}: container {} is not restricted".format(title(workload), container["name"]))
        if container["name"] in ("thresher", "valkey") and own.get("readOnlyRootFilesystem") is not True:
            raise Mistake("{}: container {} can write its root file system".format(title(workload), container["name"]))


def check_autoscaler(objects, metrics):
    """Follows the autoscaler's metric through the adapter's rule to the daemon's /metrics."""
    rules = {rule["name"]["as"]: rule for rule in read(HERE / "components/autoscale/prometheus-adapter.yaml")[0]}
    autoscaler = next(one for one in objects if one["kind"] == "HorizontalPodAutoscaler")
    for metric in autoscaler["spec"]["metrics"]:
        name = metric["pods"]["metric"]["name"]
        if name not in rules:
            raise Mistake("the autoscaler uses {}, for which the adapter has no rule".format(name))
        series = re.match(r"\w+", rules[name]["seriesQuery"]).group()
        if not re.search(r"^{}[ {{]".format(series), metrics, re.M):
            raise Mistake("the adapter reads {}, which the daemon does not have".format(series))


def workloads(objects):
    return [one for one in objects if one["kind"] in ("Deployment", "StatefulSet")]


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def title(one):
    return "{} {}".format(one["kind"], one["metadata"]["name"])


# --- the daemon ---


def run(objects, secrets, files, redis_server):
    """Starts the daemon with the settings of the first container `thresher`, and returns its metrics when the probes succeed."""
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as running:
        root = Path(work)
        if any(title(one) == "StatefulSet valkey" for one in objects):
            valkey = start_valkey(objects, secrets, root, redis_server, running)
        else:
            valkey = None
        container, environment = lay_out(objects, secrets, files, root, valkey)
        checked = subprocess.run([files["thresher"], "doctor", *container["args"][1:]], env=environment, capture_output=True, text=True)
        if checked.returncode:
            raise Mistake("the daemon does not accept these settings:\n" + checked.stdout + checked.stderr)
        log = open(root / "log", "w+", encoding="utf-8")
        daemon = subprocess.Popen([files["thresher"], *container["args"]], env=environment, stderr=log)
        running.callback(lambda: (daemon.kill(), daemon.wait()))
        admin = "http://127.0.0.1:{}".format(environment["THRESHER__ADMIN__LISTEN"].rsplit(":")[-1])
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
            if "exec" in container.get(probe, {}):
                succeed([files["thresher"], *container[probe]["exec"]["command"][1:]], environment, daemon, log)
            elif probe in container:
                answer(admin + container[probe]["httpGet"]["path"], daemon, log)
        return answer(admin + "/metrics", daemon, log)


def lay_out(objects, secrets, files, root, valkey):
    """Writes the files of the pod below `root`. Returns the container, with the paths of `root`, and the environment of its process."""
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    pod, container = next((pod, c) for pod in pods for c in containers(pod) if c["name"] == "thresher")
    maps = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    def moved(text):
        for folder in ["/etc/thresher", "/var/lib/thresher", "/opt/thresher"]:
            text = text.replace(folder, str(root) + folder)
        return re.sub(r"(valkey://(?:\w+@)?)valkey:6379", r"\g<1>127.0.0.1:{}".format(valkey), text)

    (root / "opt").mkdir()
    (root / "opt/thresher").symlink_to(files["installed"])
    for mount in container["volumeMounts"]:
        volume, path = volumes[mount["name"]], root / mount["mountPath"].lstrip("/")
        if "configMap" in volume:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(moved(maps[volume["configMap"]["name"]][mount["subPath"]]), encoding="utf-8")
        elif "secret" in volume:
            data = secrets[volume["secret"]["secretName"]]["stringData"]
            names = [item["key"] for item in volume["secret"].get("items", [])] or list(data)
            path.mkdir(parents=True, exist_ok=True)
            for name in names:
                (path / name).write_text(data[name], encoding="utf-8")
        else:
            path.mkdir(parents=True, exist_ok=True)
    environment = {one["name"]: moved(one["value"]) for one in container.get("env", [])}
    # In a pod, the program finds this file without being told.
    settings = root / "etc/thresher/thresher.toml"
    environment["THRESHER_CONFIG"] = str(settings)
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    for (name, default), port in zip([("http", "127.0.0.1:8080"), ("admin", "127.0.0.1:8081")], free_ports(2)):
        variable = "THRESHER__{}__LISTEN".format(name.upper())
        of_file = re.search(r'^\[{}\]\nlisten = "([\d.:]+)"'.format(name), settings.read_text(encoding="utf-8"), re.M)
        listen = environment.get(variable) or (of_file.group(1) if of_file else default)
        if name in ports and listen != "0.0.0.0:{}".format(ports[name]):
            raise Mistake("the port {} is {}, but the daemon listens on {}".format(name, ports[name], listen))
        # The address of the manifests, with a free port of this machine.
        environment[variable] = "{}:{}".format(listen.split(":")[0], port)
    return {**container, "args": [moved(argument) for argument in container["args"]]}, environment


def start_valkey(objects, secrets, root, redis_server, running):
    """Starts redis-server with the arguments of the StatefulSet, and returns its port."""
    pod = next(one for one in objects if title(one) == "StatefulSet valkey")["spec"]["template"]["spec"]
    (root / "data").mkdir()
    (root / "acl").mkdir()
    acl = secrets[pod["volumes"][0]["secret"]["secretName"]]["stringData"]["users.acl"]
    (root / "acl/users.acl").write_text(acl, encoding="utf-8")
    moved = {"/data": str(root / "data"), "/acl/users.acl": str(root / "acl/users.acl")}
    arguments = [moved.get(argument, argument) for argument in pod["containers"][0]["args"]]
    port = free_ports(1)[0]
    server = subprocess.Popen([redis_server, *arguments, "--port", str(port), "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL)
    running.callback(lambda: (server.kill(), server.wait()))
    deadline = time.monotonic() + RUN_S_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return port
        if server.poll() is not None or time.monotonic() > deadline:
            raise Mistake("redis-server does not start with the arguments {}".format(arguments))
        time.sleep(0.05)


def free_ports(count):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def answer(url, daemon, log):
    """The body of the first answer with status 200."""
    deadline = time.monotonic() + RUN_S_MAX
    while True:
        with contextlib.suppress(OSError), DIRECT.open(url, timeout=5) as got:
            return got.read().decode()
        if daemon.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            raise Mistake("{} does not answer; the daemon's log:\n{}".format(url, log.read()))
        time.sleep(0.05)


def succeed(command, environment, daemon, log):
    """Runs the command of a probe until it succeeds."""
    deadline = time.monotonic() + RUN_S_MAX
    while True:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode == 0:
            return
        # 1: not ready yet.
        if done.returncode != 1 or daemon.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            raise Mistake("{} fails: {}; the daemon's log:\n{}".format(command, done.stderr, log.read()))
        time.sleep(0.05)


# --- the checks themselves ---


def check_the_checks(objects, sidecar, secrets, files):
    """Breaks one thing at a time, and requires that it is found."""

    def deployment(broken):
        return next(one for one in broken if one["kind"] == "Deployment")["spec"]["template"]["spec"]

    def thresher(broken):
        return deployment(broken)["containers"][0]

    def kind(broken, name):
        return next(one for one in broken if one["kind"] == name)

    def rename(fields, old, new):
        fields[new] = fields.pop(old)

    broken_by = {
        "a misspelt field of a container": lambda b: rename(thresher(b), "readinessProbe", "readynessProbe"),
        "a misspelt field of a security context": lambda b: rename(thresher(b)["securityContext"], "readOnlyRootFilesystem", "readOnlyRootFileSystem"),
        "a field in the wrong place": lambda b: deployment(b).update(replicas=2),
        "a wrong type": lambda b: deployment(b).update(terminationGracePeriodSeconds="40"),
        "a misspelt field of a PodMonitor": lambda b: rename(kind(b, "PodMonitor")["spec"], "podMetricsEndpoints", "podMetricsEndpoint"),
        "a volume that does not exist": lambda b: thresher(b)["volumeMounts"][0].update(name="keyz"),
        "a container with capabilities": lambda b: thresher(b)["securityContext"].pop("capabilities"),
        "a Service without pods": lambda b: kind(b, "Service")["spec"]["selector"].update(app="thrasher"),
        "a probe of another program": lambda b: thresher(b).update(livenessProbe={"exec": {"command": ["/bin/thresher", "health"]}}),
        "a Secret that does not exist": lambda b: deployment(b)["volumes"][1].update(secret={"secretName": "keys"}),
    }
    for what, break_it in broken_by.items():
        broken = copy.deepcopy(objects)
        break_it(broken)
        require_mistake(what, lambda: check(broken, secrets))
    settings = {
        "a misspelt setting": ("disk_bytes_max", "disk_byte_max"),
        "an address without keys": ("keys_file =", "# keys_file ="),
        "a folder that does not exist": ("/opt/thresher/models/minilm-l6", "/opt/thresher/models/minilm"),
        "a port without a listener": ('"0.0.0.0:8081"', '"127.0.0.1:8081"'),
    }
    for what, (old, new) in settings.items():
        broken = [one for one in copy.deepcopy(objects) if title(one) != "StatefulSet valkey"]
        thresher(broken).pop("env")
        data = kind(broken, "ConfigMap")["data"]
        assert old in data["thresher.toml"], old
        data["thresher.toml"] = data["thresher.toml"].replace(old, new)
        require_mistake(what, lambda: run(broken, secrets, files, None))
    broken = copy.deepcopy(sidecar)
    deployment(broken)["initContainers"][0]["startupProbe"]["exec"]["command"][1] = "healthy"
    require_mistake("a misspelt command of a probe", lambda: run(broken, secrets, files, None))
    print("{} mistakes were made on purpose, and all were found".format(len(broken_by) + len(settings) + 1))


def require_mistake(what, checks):
    try:
        checks()
    except Mistake:
        return
    sys.exit("error: {} is not found by the checks".format(what))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Mistake as mistake:
        sys.exit("error: {}".format(mistake))
