"""Levels made of literal numbers, for the tests of verdicts, limits and findings."""

from collections.abc import Sequence
from typing import Any

from distbench.analysis.case import Ladder, LevelCase
from distbench.analysis.client_limit import ClientHealth
from distbench.analysis.level_row import empty_level_row
from distbench.analysis.server_view import EngineView, ServerView
from distbench.analysis.stability import Stability

PROVEN = ClientHealth(limited=False, evidence=("connections idled 0.10% of their time",))
UNPROVEN = ClientHealth(limited=None, evidence=("no health samples of the clients",))
LIMITED = ClientHealth(limited=True, evidence=("a client's loop used 99% of its CPU",))
DRIFTING = Stability(
    stable=False, third_rates=(1.0, 2.0, 2.0), drift_ratio=0.6, rate_error=0.1, text="thirds differ by 60.0%"
)


def server(**figures: Any) -> ServerView:
    """Return a server's view: ten scrapes and no queue unless told otherwise."""
    defaults = {"running_mean": 4.0, "running_max": 4.0, "running_plateau_ratio": 1.0, "waiting_mean": 0.0}
    quiet = {"waiting_ratio": 0.0, "kv_usage_mean": 0.2, "kv_usage_max": 0.3, "preemptions": 0.0}
    return ServerView(**({"scrapes": 10} | defaults | quiet | figures))


def full(running: float, **figures: Any) -> ServerView:
    """Return a server that runs so many requests all the time while others wait in nine of ten scrapes."""
    queue = {"waiting_mean": 7.0, "waiting_ratio": 0.9}
    return server(**({"running_mean": running, "running_max": running} | queue | figures))


def engine(name: str, **figures: Any) -> EngineView:
    """Return one engine of a target."""
    empty: dict[str, Any] = dict.fromkeys(EngineView.__slots__)
    return EngineView(**(empty | {"target": "t", "engine": name} | figures))


def case(
    connections: int,
    rate: float | None,
    view: ServerView | None = None,
    *,
    level: int | None = None,
    client: ClientHealth = PROVEN,
    stability: Stability | None = None,
    **columns: Any,
) -> LevelCase:
    """Return a level that is valid and unfailed unless told otherwise; its number is its connections."""
    row = empty_level_row(
        level=connections if level is None else level,
        connections=connections,
        output_token_rate=rate,
        request_rate=None if rate is None else rate / 10,
        requests_ok=1000,
        valid=True,
        ttft_n=1000,
    )
    return LevelCase(
        row=row | columns,
        server=view,
        client=client,
        stability=stability,
        rate_error=None if rate is None else rate * 0.001,
    )


def ladder(*cases: LevelCase) -> Ladder:
    """Return the ladder of some levels."""
    return Ladder.of(cases)


def rising(views: Sequence[ServerView | None], rates: Sequence[float], **columns: Any) -> list[LevelCase]:
    """Return levels at 1, 2, 4 ... connections."""
    return [
        case(2**i, rate, view, **columns) for i, (rate, view) in enumerate(zip(rates, views, strict=True))
    ]
