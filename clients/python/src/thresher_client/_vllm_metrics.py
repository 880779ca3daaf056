"""What the connector of vLLM counts, in the form of vLLM's statistics of connectors and of its Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, get_args

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from ._kv_sources import Reason


@dataclass
class Stats(KVConnectorStats):
    """What happened since the last report. `data` has these fields:

    - `outcomes`: number of requests by outcome, `"loaded"` or a `Reason`
    - `tokens`: tokens that were loaded
    - `fetch_s`, `write_s`: for each load, the seconds until the export was there, and those of writing it
    """

    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fills in the fields of an object without data."""
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.data = {"outcomes": {}, "tokens": 0, "fetch_s": [], "write_s": []}

    def count(self, outcome: str) -> None:
        """Counts one request."""
        self.data["outcomes"][outcome] = self.data["outcomes"].get(outcome, 0) + 1

    def aggregate(self, other: Stats) -> Stats:
        """Adds the values of `other`, and returns this object."""
        self.data["outcomes"] = dict(Counter(self.data["outcomes"]) + Counter(other.data["outcomes"]))
        for name in ("tokens", "fetch_s", "write_s"):
            self.data[name] = self.data[name] + other.data[name]
        return self

    def reduce(self) -> dict[str, int | float]:
        """Returns the values that vLLM logs."""
        loads = max(len(self.data["fetch_s"]), 1)
        return {
            **{f"thresher {outcome}": count for outcome, count in sorted(self.data["outcomes"].items())},
            "thresher tokens": self.data["tokens"],
            "thresher fetch (ms)": round(1e3 * sum(self.data["fetch_s"]) / loads, 1),
            "thresher write (ms)": round(1e3 * sum(self.data["write_s"]) / loads, 1),
        }

    def is_empty(self) -> bool:
        """Returns whether nothing happened."""
        return not self.data["outcomes"]


class PromMetrics(KVConnectorPromMetrics):
    """Metrics of vLLM's `/metrics`. Each has vLLM's own labels; `vllm:thresher_requests_total` also has the label `outcome`."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        requests = self._counter_cls(
            name="vllm:thresher_requests",
            documentation="Requests that name an export of keys and values, by outcome: loaded, or why the prompt was prefilled.",
            labelnames=[*labelnames, "outcome"],
        )
        tokens = self._counter_cls(
            name="vllm:thresher_tokens",
            documentation="Tokens whose keys and values were loaded from exports.",
            labelnames=labelnames,
        )
        seconds = {
            name: self._histogram_cls(
                name=f"vllm:thresher_{name}_seconds",
                documentation=documentation,
                buckets=[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
                labelnames=labelnames,
            )
            for name, documentation in (
                ("fetch", "Seconds until an export was in memory and checked, waits for threads included."),
                ("write", "Seconds in which the rows of an export were written into the cache."),
            )
        }
        outcomes = ("loaded", *get_args(Reason))
        self._requests = {
            engine: {outcome: requests.labels(*values, outcome) for outcome in outcomes}
            for engine, values in per_engine_labelvalues.items()
        }
        self._tokens = {engine: tokens.labels(*values) for engine, values in per_engine_labelvalues.items()}
        self._seconds = {
            engine: {name: histogram.labels(*values) for name, histogram in seconds.items()}
            for engine, values in per_engine_labelvalues.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the values of a `Stats` to the metrics."""
        for outcome, count in transfer_stats_data["outcomes"].items():
            self._requests[engine_idx][outcome].inc(count)
        self._tokens[engine_idx].inc(transfer_stats_data["tokens"])
        for name, histogram in self._seconds[engine_idx].items():
            for seconds in transfer_stats_data[f"{name}_s"]:
                histogram.observe(seconds)
