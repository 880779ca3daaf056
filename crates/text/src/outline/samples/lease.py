"""Lease handling for the ferry job runner.

A lease is a row in the ``leases`` table that names the worker which may run
a job.  Leases expire on their own, so a crashed worker never blocks a job
for longer than one TTL.
"""
from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from .errors import LeaseHeldError, LeaseLostError, StoreUnavailable
from .store import Store

LEASE_TTL = 90.0
RENEW_MARGIN = 0.25


@dataclass(frozen=True)
class Lease:
    job_id: str
    owner: str
    expires_at: float
    generation: int = 0

    def remaining(self, now: float) -> float:
        return max(0.0, self.expires_at - now)


class LeaseManager:
    """Hands out leases and renews them while a job is running."""

    def __init__(self, store: Store, worker_id: str, clock=time.time):
        self._store = store
        self._worker_id = worker_id
        self._clock = clock

    def acquire(self, job_id: str) -> Lease:
        now = self._clock()
        current = self._store.get_lease(job_id)
        if current is not None and current.remaining(now) > 0:
            if current.owner != self._worker_id:
                raise LeaseHeldError(job_id, current.owner)
            return self.renew(current)
        generation = current.generation + 1 if current else 1
        lease = Lease(job_id, self._worker_id, now + LEASE_TTL, generation)
        if not self._store.put_lease(lease, expected=current):
            raise StoreUnavailable(f"could not write lease for {job_id}")
        return lease

    def renew(self, lease: Lease) -> Lease:
        """Extend *lease* by one TTL, or raise if somebody else took it."""
        current = self._store.get_lease(lease.job_id)
        if current is None or current.generation != lease.generation:
            raise LeaseLostError(lease.job_id)
        fresh = Lease(
            lease.job_id,
            lease.owner,
            self._clock() + LEASE_TTL,
            lease.generation,
        )
        self._store.put_lease(fresh, expected=current)
        return fresh

    def needs_renewal(self, lease: Lease) -> bool:
        return lease.remaining(self._clock()) < LEASE_TTL * RENEW_MARGIN

    def release(self, lease: Lease) -> None:
        self._store.drop_lease(lease.job_id, lease.generation)

    @contextlib.contextmanager
    def holding(self, job_id: str):
        lease = self.acquire(job_id)
        try:
            yield lease
        finally:
            self.release(lease)
