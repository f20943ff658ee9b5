"""Quotas: nobody gets more than theirs, everybody gets that much, and the books are closed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from acespec.cloud_verifier.tenants import FORGET_EVERY_S, Quota, QuotaError, Tenant, TenantLedger
from acespec.wire import ErrorCode

QUOTAS = {
    "free": Quota(),
    "small": Quota(max_sessions=2, kv_bytes=100, tokens_per_s=10.0),
    "rate": Quota(tokens_per_s=0.5),
}
names = st.sampled_from(sorted(QUOTAS))


@pytest.mark.parametrize(
    "values",
    [
        {"max_sessions": 0},
        {"kv_bytes": 0},
        {"tokens_per_s": 0.0},
        {"tokens_per_s": math.nan},
        {"tokens_per_s": math.inf},
    ],
)
def test_a_quota_out_of_range_is_named(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(values))} must be"):
        Quota(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 129, "\x1b[31m"])
def test_a_name_that_would_spoil_a_log_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 128 printable characters"):
        Tenant(name)


def test_a_refusal_names_the_quota_in_one_line_and_books_nothing() -> None:
    ledger, tenant = TenantLedger(), Tenant("small", QUOTAS["small"])
    ledger.admit(tenant, 60)
    with pytest.raises(
        QuotaError, match=r"take 41 bytes .* quota kv_bytes of tenant 'small' has 40 of 100 left"
    ) as caught:
        ledger.admit(tenant, 41)
    assert caught.value.code is ErrorCode.RESOURCE_EXHAUSTED
    ledger.admit(tenant, 40)
    with pytest.raises(QuotaError, match=r"quota max_sessions of tenant 'small' is used up \(2\)"):
        ledger.admit(tenant, 0)
    assert (ledger.usage("small").sessions, ledger.usage("small").kv_bytes) == (2, 100)


def test_a_smaller_quota_counts_at_once() -> None:
    ledger = TenantLedger()
    ledger.admit(Tenant("a", Quota(max_sessions=3)), 0)
    with pytest.raises(QuotaError):
        ledger.admit(Tenant("a", Quota(max_sessions=1)), 0)


def test_a_second_s_worth_comes_at_once_and_then_the_rate() -> None:
    ledger, tenant = TenantLedger(), Tenant("a", Quota(tokens_per_s=10.0))
    assert ledger.take(tenant, 10, now=5.0) == 0.0
    assert ledger.take(tenant, 1, now=5.0) == pytest.approx(0.1)
    assert ledger.take(tenant, 1, now=5.1) == 0.0
    assert ledger.take(tenant, 4, now=5.1) == pytest.approx(0.4)


def test_more_than_a_second_s_worth_waits_for_a_full_bucket_and_is_paid_off() -> None:
    ledger, tenant = TenantLedger(), Tenant("a", Quota(tokens_per_s=10.0))
    assert ledger.take(tenant, 35, now=0.0) == 0.0
    assert ledger.take(tenant, 1, now=0.0) == pytest.approx(2.6)  # 25 owed and 1
    assert ledger.take(tenant, 35, now=2.6) == pytest.approx(0.9)
    assert ledger.take(tenant, 35, now=3.5) == 0.0


@given(
    st.floats(0.01, 1e5),
    st.lists(st.tuples(st.integers(1, 2000), st.floats(0.0, 5.0)), min_size=1, max_size=40),
    st.floats(0.0, 1e6),
)
def test_the_rate_is_kept_over_any_stretch_and_a_wait_is_enough(
    rate: float, requests: list[tuple[int, float]], start: float
) -> None:
    """By the slow reading: between any two grants, at most a second's worth more than the rate was taken."""
    ledger, tenant = TenantLedger(), Tenant("a", Quota(tokens_per_s=rate))
    now, granted = start, []
    for tokens, pause in requests:
        now += pause
        wait = ledger.take(tenant, tokens, now)
        if wait:
            before = [*granted, (now, tokens)]
            assert any(
                sum(count for when, count in before if when >= since)
                > rate * (1.0 + now - since) * (1 - 1e-9)
                for since, _ in before
            ), "put off though the bucket had room"
            now += wait
            assert ledger.take(tenant, tokens, now) == 0.0, "the wait it was told was not enough"
        granted.append((now, tokens))
    for first, (since, _) in enumerate(granted):
        for last, (when, tokens) in enumerate(granted[first:], first):
            total = sum(count for _, count in granted[first : last + 1])
            # One request larger than the bucket may run into debt; what stands before it may not.
            allowed = rate * (1.0 + when - since) + max(0.0, tokens - rate)
            assert total <= allowed * (1 + 1e-9) + 1e-3 * rate


class Books(RuleBasedStateMachine):
    """Sessions come and go and tokens are taken, against plain sums."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = TenantLedger()
        self.open: list[tuple[str, int]] = []
        self.now = 0.0
        self.last_taken: dict[str, float] = {}

    @rule(target=sessions, name=names, kv_bytes=st.integers(0, 60))
    def admit(self, name: str, kv_bytes: int) -> object:
        quota = QUOTAS[name]
        held = [size for owner, size in self.open if owner == name]
        fits = (quota.max_sessions is None or len(held) < quota.max_sessions) and (
            quota.kv_bytes is None or sum(held) + kv_bytes <= quota.kv_bytes
        )
        if not fits:
            with pytest.raises(QuotaError):
                self.ledger.admit(Tenant(name, quota), kv_bytes)
            return None
        self.ledger.admit(Tenant(name, quota), kv_bytes)
        self.open.append((name, kv_bytes))
        return (name, kv_bytes)

    @rule(session=consumes(sessions))
    def release(self, session: tuple[str, int] | None) -> None:
        if session is not None:
            self.open.remove(session)
            self.ledger.release(Tenant(session[0], QUOTAS[session[0]]), session[1])

    @rule(name=names, tokens=st.integers(1, 50), pause=st.floats(0.0, 100.0))
    def take(self, name: str, tokens: int, pause: float) -> None:
        self.now += pause
        if (
            self.ledger.take(Tenant(name, QUOTAS[name]), tokens, self.now) == 0.0
            and QUOTAS[name].tokens_per_s
        ):
            self.last_taken[name] = self.now

    @rule()
    def long_silence(self) -> None:
        """After it only tenants with sessions, and the one that just came, are on the books."""
        self.now += 1e6 + FORGET_EVERY_S
        self.ledger.take(Tenant("rate", QUOTAS["rate"]), 1, self.now)
        assert len(self.ledger) == len({name for name, _ in self.open} | {"rate"})

    @invariant()
    def books_are_right(self) -> None:
        for name in QUOTAS:
            held = [size for owner, size in self.open if owner == name]
            usage = self.ledger.usage(name)
            assert (usage.sessions, usage.kv_bytes) == (len(held), sum(held))


TestBooks = Books.TestCase


def test_tenants_without_a_rate_leave_nothing_behind() -> None:
    ledger = TenantLedger()
    for number in range(100):
        tenant = Tenant(f"tenant-{number}")
        ledger.admit(tenant, 5)
        assert ledger.take(tenant, 10**9, now=0.0) == 0.0
        ledger.release(tenant, 5)
    assert len(ledger) == 0
