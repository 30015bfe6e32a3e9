"""The state of the gateway and of its shards: `/api/v1/status`, health and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from config.settings import Config
from daemon import PROTOCOL, VERSION
from daemon.gateway.link import ShardLink
from daemon.gateway.shards import Shards
from daemon.http.prometheus import http_metrics
from daemon.http.reply import JSON, UNSTORED, answer
from daemon.metrics import Served
from handlers.answers import ChainStatus, Health, TipAnswer, to_tip

_encode = msgspec.json.Encoder().encode
_NOT_READY = ("unknown", "daemon_away", "empty", "no_feeder", "behind", "not_enabled")  # the worst first


class ShardStatus(Struct, frozen=True, kw_only=True):
    """One shard as the gateway sees it."""

    shard: str
    url: str
    available: bool
    reason: Annotated[str | None, Meta(description="why it is not available, or not ready")]
    ready: bool
    tip: TipAnswer | None
    unspent: int | None


class GatewayStatus(Struct, frozen=True, kw_only=True):
    """The state of a gateway: the tip that all shards have, and each shard."""

    version: str
    protocol: int
    tip: TipAnswer | None
    chain: ChainStatus
    unspent: Annotated[int | None, Meta(description="in all shards; null while one is not available")]
    shards: list[ShardStatus]


class StatusRoutes:
    """Answers from what the gateway knows; no shard is queried."""

    def __init__(self, shards: Shards, config: Config) -> None:
        self._shards, self._config = shards, config

    def endpoints(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """Return what answers, by path."""
        return {"/api/v1/status": self.status, "/health/live": self.live, "/health/ready": self.ready}

    async def status(self, request: Request) -> Response:
        """The state of all shards."""
        links, tip, chain = self._shards.links, self._shards.tip(), self._chain()
        counts = [link.status.utxo.unspent for link in links if link.status and link.failure is None]
        status = GatewayStatus(
            version=VERSION,
            protocol=PROTOCOL,
            tip=None if tip is None else to_tip(tip),
            chain=chain,
            unspent=sum(counts) if len(counts) == len(links) else None,
            shards=list(map(_status_of, links)),
        )
        timeless = msgspec.structs.replace(status, chain=msgspec.structs.replace(chain, seconds_since_last_block=None))
        return answer(request, tip, _encode(status), timeless=_encode(timeless))

    def _chain(self) -> ChainStatus:
        chains = [link.status.chain for link in self._shards.links if link.status]
        heights = [each.network_tip_height for each in chains if each.network_tip_height is not None]
        ages = [each.seconds_since_last_block for each in chains if each.seconds_since_last_block is not None]
        lags = [each.lag_blocks for each in chains if each.lag_blocks is not None]
        return ChainStatus(
            family=self._config.chain.family,
            network=self._config.chain.network,
            shard=None,
            network_tip_height=max(heights, default=None),
            lag_blocks=max(lags, default=None),
            persisted_height=None,
            seconds_since_last_block=max(ages, default=None),
        )

    async def live(self, request: Request) -> Response:
        """Whether the gateway answers."""
        return answer(request, self._shards.tip(), _encode(self._health("live", None)), more=UNSTORED)

    async def ready(self, request: Request) -> Response:
        """Whether all shards answer, and their answers are fresh."""
        unready = [link for link in self._shards.links if link.health.status != "ready"]
        body = _encode(self._health("ready", None))
        if unready:
            worst = min(unready, key=lambda link: _NOT_READY.index(link.health.status))
            state = "shard_unavailable" if worst.failure else worst.health.status
            body = _encode(self._health(state, "; ".join(_reason(link) for link in unready)))
        return answer(request, self._shards.tip(), body, JSON, UNSTORED, 503 if unready else 200)

    def _health(self, state: str, reason: str | None) -> Health:
        chain = self._chain()
        return Health(
            status=state,
            reason=reason,
            seconds_since_last_block=chain.seconds_since_last_block,
            lag_blocks=chain.lag_blocks,
            store_id=None,
        )


class GatewayMetrics(Collector):
    """What one worker knows of the shards, and what all workers have answered."""

    def __init__(self, shards: Shards, answers: Callable[[], tuple[Served, int]]) -> None:
        self._shards, self._answers = shards, answers

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        links = self._shards.links
        yield _of_shards(
            "shard_available", "1 while the shard answers, otherwise 0.", links, lambda link: link.failure is None
        )
        yield _of_shards("shard_ready", "1 while the answers of the shard are fresh, otherwise 0.", links, _is_ready)
        yield _of_shards("shard_tip_height", "Height of the last block of the shard.", links, _height)
        requests = CounterMetricFamily(
            "utxod_shard_requests_total", "Requests of this worker to the shard.", labels=["shard"]
        )
        failures = CounterMetricFamily(
            "utxod_shard_failures_total", "Requests that the shard did not answer.", labels=["shard"]
        )
        for link in links:
            requests.add_metric([str(link.shard)], link.requests)
            failures.add_metric([str(link.shard)], link.failures)
        yield requests
        yield failures
        text = "Answers for which the tips of shards differed."
        yield CounterMetricFamily("utxod_shards_differed_total", text, value=self._shards.differed)
        answers, workers = self._answers()
        yield GaugeMetricFamily("utxod_http_workers", "Running HTTP workers.", value=max(workers, 1))
        yield from http_metrics(answers)


def _of_shards(
    name: str, text: str, links: list[ShardLink], value: Callable[[ShardLink], float | None]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"utxod_{name}", text, labels=["shard"])
    for link in links:
        if (found := value(link)) is not None:
            family.add_metric([str(link.shard)], found)
    return family


def _is_ready(link: ShardLink) -> bool:
    return link.health.status == "ready"


def _height(link: ShardLink) -> int | None:
    return None if link.tip is None else link.tip.height


def _reason(link: ShardLink) -> str:
    return f"shard {link.shard}: {link.failure or link.health.reason or link.health.status}"


def _status_of(link: ShardLink) -> ShardStatus:
    return ShardStatus(
        shard=str(link.shard),
        url=link.url,
        available=link.failure is None,
        reason=link.failure or link.health.reason,
        ready=link.health.status == "ready",
        tip=None if link.tip is None else to_tip(link.tip),
        unspent=None if link.status is None else link.status.utxo.unspent,
    )
