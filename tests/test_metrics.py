"""Metrics: what is counted, what a running daemon exposes, and that the documents describe the same."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from daemons import ROOT, Daemon, error, home, running, statuses
from patience import until
from prometheus_client.parser import text_string_to_metric_families
from questions import Web, running_api, serve_alone
from reader_processes import children
from scenarios import back_to, block, chain, digest, output, tx
from structlog.testing import capture_logs

from config.settings import Config
from config.store import Utxo
from daemon import metrics
from daemon.app import _numbers, make_hub
from daemon.bus import Bus
from daemon.histogram import BOUNDS, BOUNDS_S, Histogram
from daemon.inbox import Channel, weight
from daemon.metrics import MetricsFile, Numbers, Served
from handlers.delivery import Delivery
from handlers.events import Fact, TxStatusChanged
from handlers.points import View
from handlers.utxo import Committed

Values = dict[str, float]
TWO = {"workers": 2}


def values(text: str) -> Values:
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found
            found[key] = sample.value
    return found


def metrics_of(daemon: Daemon) -> str:
    with Web(daemon.folder / "http") as web:  # the next one may meet another worker
        answer = web.ask("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.text


def scrape(daemon: Daemon) -> Values:
    return values(metrics_of(daemon))


def families(daemon: Daemon) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", metrics_of(daemon), re.MULTILINE))


def feed_and_fail(daemon: Daemon) -> None:
    """Feed twelve blocks, roll two of them back, and cause an error of each of three kinds."""
    blocks = chain(10, outputs=3)
    lost = tx("lost", output("lost"), spends=[[digest("nobody"), 0], [digest("nobody"), 1]])
    blocks.append(block(blocks[-1], lost))
    blocks.append(block(blocks[-1]))
    with daemon.client("frames") as feeder:
        assert statuses(feeder.feed(blocks)) == ["applied"] * 12
        feeder.hello(network_tip={"height": 40})
        assert feeder.ask(back_to(blocks[9]))["status"] == "rolled_back"
        assert feeder.ask(blocks[9])["status"] == "duplicate"
        error(feeder.ask(blocks[11]), "gap")
        error(feeder.ask({"type": "Rollback", "to": "origin"}), "beyond_rollback_floor")
        error(feeder.ask({"type": "Nonsense"}), "unknown_type")


def test_everything_that_was_done_is_counted(folder: Path) -> None:
    with running_api(folder, utxo={"rollback_window": 4, "prune_depth": 2}) as api:
        before = until(lambda: scrape(api.daemon), lambda now: now["utxod_messages_total{type=Subscribe}"])
        assert "utxod_tip_height" not in before and "utxod_seconds_since_last_block" not in before
        assert before["utxod_unspent"] == before["utxod_blocks_total"] == before["utxod_prune_seconds_count"] == 0
        feed_and_fail(api.daemon)
        now = until(lambda: scrape(api.daemon), lambda now: now["utxod_errors_total{code=unknown_type}"])
        store = api.daemon.status()
        plain = {
            **{"blocks_total": 12, "transactions_total": 11, "created_total": 31, "spent_total": 9},
            **{"missing_inputs_total": 2, "rollbacks_total": 1, "rolled_back_blocks_total": 2},
            **{"messages_total{type=BlockApplied}": 14, "messages_total{type=Rollback}": 2},
            **{"messages_total{type=unknown}": 1, "messages_total{type=TxMined}": 0},
            **{f"errors_total{{code={code}}}": 1 for code in ("gap", "beyond_rollback_floor", "unknown_type")},
            **{"errors_total{code=malformed}": 0, "inbox_messages": 0, "inbox_bytes": 0},
            **{"daemon_running": 1, "http_workers": 1, "tip_height": 10, "tip_slot": 200, "lag_blocks": 30},
            "unspent": store["unspent"],
            "rollback_floor_height": store["rollback_floor"]["height"],
            "prune_backlog_blocks": store["prune_backlog_blocks"],
            "used_bytes": store["bytes_used"],
            **{"map_size_bytes": 64 << 20, "apply_seconds_count": 12, "rollback_seconds_count": 1},
        }
        assert {name: now[f"utxod_{name}"] for name in plain} == plain
        assert store["unspent"] == 21 and store["rollback_floor"]["height"] == 7
        commits = [line for line in api.daemon.log_lines() if line["event"] == "blocks_committed"]
        assert now["utxod_commit_seconds_count"] == len(commits)
        assert now["utxod_batch_blocks"] == commits[-1]["blocks"]
        blocks = [line for line in commits if line["blocks"]]
        for name, counted in (("create", "created"), ("spend", "spent")):
            found = {bound: now[f"utxod_{name}_batch_outputs_bucket{{le={bound}}}"] for bound in (*BOUNDS, "+Inf")}
            each = [line[counted] for line in blocks]
            assert found == {bound: sum(n <= float(bound) for n in each) for bound in (*BOUNDS, "+Inf")}
            assert now[f"utxod_{name}_batch_outputs_sum"] == plain[f"{counted}_total"]
        assert now["utxod_pruned_total{kind=outputs}"] == 6 and now["utxod_pruned_total{kind=undo_records}"] == 7
        assert now["utxod_pruned_total{kind=transactions}"] == 0
        assert now["utxod_received_bytes_total"] - before["utxod_received_bytes_total"] > 3000
        for work in ("apply", "commit", "rollback"):
            assert 0 < now[f"utxod_{work}_seconds_sum"] < 5
        buckets = [now[f"utxod_apply_seconds_bucket{{le={bound}}}"] for bound in (*map(str, BOUNDS_S), "+Inf")]
        assert buckets == sorted(buckets) and buckets[-1] == 12
        assert abs(now["utxod_daemon_start_time_seconds"] - api.daemon.socket.stat().st_mtime) < 10
        sleep(0.2)  # time passes between scrapes, whatever the daemon does
        since = "utxod_seconds_since_last_block"
        assert now[since] + 0.2 < scrape(api.daemon)[since] < now[since] + 10


def test_repairs_of_records_and_steps_of_pruning_are_counted(folder: Path) -> None:
    windows = {"rollback_window": 1, "prune_depth": 1, "prune_batch_size": 1}
    with running_api(folder, utxo=windows) as api, api.daemon.client() as client:
        assert until(lambda: scrape(api.daemon), lambda now: "utxod_records_repaired_total" in now)
        client.ask({"type": "TxSubmitted", "tx": tx("a", output("submitted"))})
        client.ask({"type": "NodeState", "state": "catching_up", "height": 1})  # nothing is pruned meanwhile
        first = block(None, tx("a", output("mined")))
        assert statuses(client.feed([first, *chain(19, first)])) == ["applied"] * 20
        client.ask({"type": "NodeState", "state": "running", "height": 20})
        now = until(lambda: scrape(api.daemon), lambda now: now["utxod_pruned_total{kind=undo_records}"] == 18)
        assert now["utxod_records_repaired_total"] == 1
        assert now["utxod_prune_seconds_count"] >= 10 and now["utxod_prune_backlog_blocks"] == 0


def test_an_observation_is_in_the_bucket_of_its_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] + 1e-9, 0.3, 1000.0):
        histogram.observe(seconds)
    assert sum(histogram.counts) == 5
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-1]) == (2, 1, 1)
    assert histogram.counts[BOUNDS_S.index(0.5)] == 1
    other = Histogram()
    other.observe(2.0)
    other.add(histogram)
    assert sum(other.counts) == 6 and other.total == pytest.approx(histogram.total + 2.0)


def test_deleted_transactions_are_counted_by_commit() -> None:
    numbers = Numbers()
    statuses = ["pruned", "pruned", "mined"]
    facts: list[Fact] = [TxStatusChanged(txid=bytes([n]) * 32, status=s, height=9) for n, s in enumerate(statuses)]
    numbers.committed(Committed([], facts, View(), 0.02, timings=[("cleanup", 0.02)]))
    numbers.count(facts)
    numbers.count(facts[2:])
    assert (sum(numbers.batches["cleanup"].counts), numbers.batches["cleanup"].total) == (1, 2)
    assert numbers.batches["cleanup"].counts[BOUNDS.index(3)] == 1
    assert numbers.timings["cleanup"].counts[BOUNDS_S.index(0.025)] == 1
    assert sum(numbers.batches["create"].counts) == 0, "there was no block"


def test_open_connections_and_waiting_messages_are_shown() -> None:
    async def main() -> bytes:
        bus = Bus()
        inbox = bus.inbox(capacity=1 << 20)
        hub = make_hub(Config(utxo=Utxo(enabled=False)), bus, inbox)
        hub.network_height, hub.view = 77, View(map_size=4096)
        channel = Channel(inbox, 0)
        await channel.reserve(700)
        channel.put(Delivery(b"x", "json", None, None))  # type: ignore[arg-type]
        connections: Any = SimpleNamespace(open={1, 2, 3})
        return _numbers(hub, connections)

    numbers = msgspec.msgpack.decode(anyio.run(main), type=Numbers)
    assert (numbers.connections, numbers.inbox_messages, numbers.inbox_bytes) == (3, 1, weight(700))
    assert (numbers.network_height, numbers.map_size) == (77, 4096)


def test_unknown_types_are_counted_under_one_label() -> None:
    numbers = Numbers()
    known = set(numbers.messages)
    for n in range(1000):
        numbers.count_message(f"Kind{n}")
    assert set(numbers.messages) == known and numbers.unknown_messages == 1000


def test_queries_are_counted_by_route_and_status(folder: Path) -> None:
    with running_api(folder, http=TWO) as api, api.daemon.client() as client:
        client.feed(chain(3))
        txid = digest("tx", "1").hex()
        requests = {
            "/api/v1/tip": ("/api/v1/tip", 200),
            f"/api/v1/utxos/{txid}/0": ("/api/v1/utxos/{tx_hash}/{index}", 200),
            f"/api/v1/utxos/{txid}/9": ("/api/v1/utxos/{tx_hash}/{index}", 404),
            "/api/v1/addresses/nonsense/balance": ("/api/v1/addresses/{address}/balance", 400),
            "/api/v1/mmr/root": ("/api/v1/mmr/root", 503),
            "/wp-login.php": ("unmatched", 404),
        }
        for path, (_, status) in requests.items():
            for _ in range(4):
                assert api.ask(path, Connection="close").status_code == status
        counts = {f"utxod_query_seconds_count{{route={route},status={status}}}" for route, status in requests.values()}
        now = until(lambda: scrape(api.daemon), lambda now: sum(now.get(name, 0) for name in counts) == 4 * len(counts))
        assert {now[name] for name in counts} == {4}
        assert now["utxod_http_workers"] == 2
        until(lambda: scrape(api.daemon), lambda now: "utxod_query_seconds_count{route=/metrics,status=200}" in now)
        for _ in range(6):  # whichever worker answers
            again = scrape(api.daemon)
            assert {again[name] for name in counts} == {4} and again["utxod_http_workers"] == 2


def test_a_new_worker_continues_the_counts_of_a_killed_one(folder: Path) -> None:
    with running_api(folder, http=TWO) as api:
        name = "utxod_query_seconds_count{route=/api/v1/tip,status=404}"
        for _ in range(10):
            api.ask("/api/v1/tip", Connection="close")
        until(lambda: scrape(api.daemon), lambda now: now.get(name) == 10)
        first = until(lambda: children(api.daemon.process.pid), lambda pids: len(pids) == 2)
        files = sorted((folder / "data" / "metrics").iterdir())
        os.kill(first[0], signal.SIGKILL)
        until(lambda: "http_worker_ended" in api.daemon.events())
        [ended] = [line for line in api.daemon.log_lines() if line["event"] == "http_worker_ended"]
        assert (ended["code"], ended["level"]) == (-signal.SIGKILL, "error")
        until(lambda: children(api.daemon.process.pid), lambda pids: len(pids) == 2 and first[0] not in pids)
        until(lambda: scrape(api.daemon), lambda now: now["utxod_http_workers"] == 2 and now[name] == 10)
        for _ in range(10):
            api.ask("/api/v1/tip", Connection="close")
        until(lambda: scrape(api.daemon), lambda now: now[name] == 20)
        assert sorted((folder / "data" / "metrics").iterdir()) == files  # the next worker uses the same file


def test_serve_alone_reports_the_store_and_no_daemon(folder: Path) -> None:
    with running(folder, http={"listen": f"unix:{folder}/http"}) as daemon:
        with daemon.client() as client:
            client.hello(network_tip={"height": 7})
            client.feed(chain(5))
        with serve_alone(daemon):
            now = until(lambda: scrape(daemon), lambda now: now.get("utxod_blocks_total") == 5)
            assert (now["utxod_daemon_running"], now["utxod_lag_blocks"], now["utxod_http_workers"]) == (1, 2, 1)
            types = families(daemon)
            daemon.kill()
            now = scrape(daemon)
            assert (now["utxod_daemon_running"], now["utxod_tip_height"], now["utxod_unspent"]) == (0, 5, 1)
            assert now["utxod_map_size_bytes"] >= now["utxod_used_bytes"] > 0
            removed = ("blocks_total", "connections", "lag_blocks", "seconds_since_last_block", "apply_seconds_count")
            assert not [name for name in removed if f"utxod_{name}" in now]
            assert families(daemon) == types  # without a value, but not forgotten
            daemon.start()
            now = until(lambda: scrape(daemon), lambda now: now["utxod_daemon_running"] and "utxod_blocks_total" in now)
            assert now["utxod_blocks_total"] == 0  # totals are those of one process


def test_a_daemon_removes_the_files_of_workers_whose_parents_have_ended(folder: Path) -> None:
    with running(folder) as daemon:
        where = folder / "data" / "metrics"
        daemon.term()
        (where / "http-4194305-0").write_bytes(b"left behind")  # larger than any process id
        alive = where / f"http-{os.getppid()}-0"
        alive.write_bytes(b"")
        daemon.start()
        assert {path.name for path in where.iterdir()} == {"daemon", alive.name}


def test_a_daemon_runs_without_a_folder_for_its_metrics(folder: Path) -> None:
    with home(folder, http={"workers": 1, "listen": f"unix:{folder}/http"}) as daemon, Web(folder / "http") as web:
        (folder / "data").mkdir()
        (folder / "data" / "metrics").write_bytes(b"in the way")
        daemon.start()
        with daemon.client() as client:
            assert statuses(client.feed(chain(3))) == ["applied"] * 3
        web.ask("/api/v1/tip")
        answered = "utxod_query_seconds_count{route=/api/v1/tip,status=200}"
        now = until(lambda: scrape(daemon), lambda now: answered in now)
        assert (now["utxod_tip_height"], now["utxod_http_workers"], now["utxod_daemon_running"]) == (3, 1, 0)
        assert "metrics_not_shown" in daemon.events()
        assert daemon.term() == 0


def test_a_full_disk_stops_only_the_metrics() -> None:
    descriptor = os.open("/dev/full", os.O_RDWR)
    file = MetricsFile(descriptor)
    for _ in range(3):
        file.show(b"numbers")
    assert file._warned
    file.close()
    file.show(b"numbers")  # closed: nothing happens


def test_numbers_that_cannot_be_shown_do_not_end_the_thread(tmp_path: Path) -> None:
    answers = iter([10**30, 10**30, 7])  # MessagePack has no such numbers

    def numbers() -> bytes:
        return metrics.encode(Numbers(blocks=next(answers, 7)))

    with metrics.daemon_metrics_file(tmp_path) as file, capture_logs() as lines, metrics.keep_updated(file, numbers):
        shown = until(lambda: metrics.daemon_numbers(tmp_path), lambda shown: shown is not None)
    assert shown is not None and shown.blocks == 7
    assert [line["event"] for line in lines] == ["metrics_not_shown"]


def test_a_file_belongs_to_one_process(tmp_path: Path) -> None:
    first = metrics._claim(tmp_path / "one")
    assert first is not None and metrics._claim(tmp_path / "one") is None
    own = Served()
    own.observe("/here", 200, 0.2)
    first.show(metrics.encode(own))
    found, lives = metrics._read(tmp_path / "one", Served)
    assert found == own and lives
    first.close()
    found, lives = metrics._read(tmp_path / "one", Served)
    assert found == own and not lives
    second = metrics._claim(tmp_path / "one")
    assert second is not None and second.shown(Served) == own
    second.clear()
    assert second.shown(Served) is None
    second.close()


def test_a_daemon_begins_with_an_empty_file(tmp_path: Path) -> None:
    with metrics.daemon_metrics_file(tmp_path) as file:
        file.show(metrics.encode(Numbers(blocks=3)))
        assert metrics.daemon_numbers(tmp_path) == file.shown(Numbers)
    assert metrics.daemon_numbers(tmp_path) is None
    with metrics.daemon_metrics_file(tmp_path):
        assert metrics.daemon_numbers(tmp_path) is None


def test_workers_of_one_parent_are_added_up(tmp_path: Path) -> None:
    parent = os.getppid()
    with metrics.worker_metrics_file(tmp_path, parent) as one, metrics.worker_metrics_file(tmp_path, parent) as two:
        for seconds, file in ((0.1, one), (7.0, two)):
            own = Served()
            own.observe("/both", 200, seconds)
            own.observe(f"/{seconds}", 404, seconds)
            file.show(metrics.encode(own))
        total, alive = metrics.served(tmp_path, parent)
        assert alive == 2 and set(total.seconds) == {"200 /both", "404 /0.1", "404 /7.0"}
        assert sum(total.seconds["200 /both"].counts) == 2 and total.seconds["200 /both"].total == 7.1
    assert metrics.served(tmp_path, parent) == (total, 0)
    assert metrics.served(tmp_path, os.getpid()) == (Served(), 0)


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-1], lambda raw: raw[:5], lambda raw: raw[:-1] + b"\xff"])
def test_a_torn_file_is_not_read(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    file = metrics._claim(tmp_path / "daemon")
    assert file is not None
    file.show(metrics.encode(Numbers()))
    assert metrics.daemon_numbers(tmp_path) is not None
    whole = (tmp_path / "daemon").read_bytes()
    (tmp_path / "daemon").write_bytes(spoil(whole))
    assert metrics.daemon_numbers(tmp_path) is None
    file.show(metrics.encode(Numbers(blocks=3)))
    numbers = metrics.daemon_numbers(tmp_path)
    assert numbers is not None and numbers.blocks == 3
    file.show(b"\xc0")  # of another version
    assert metrics.daemon_numbers(tmp_path) is None
    file.close()
    assert metrics.daemon_numbers(tmp_path / "nowhere") is None


DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()
DOCUMENTED = dict(re.findall(r"^\| `(utxod_\w+)` \| (\w+) \|", DOCUMENT, re.MULTILINE))


def test_docs_describe_what_a_running_daemon_exposes(folder: Path) -> None:
    with running_api(folder) as api:
        api.ask("/api/v1/tip")
        assert families(api.daemon) == DOCUMENTED
    assert len(DOCUMENTED) == len(re.findall(r"^\| `utxod_", DOCUMENT, re.MULTILINE))
    histograms = [name for name, kind in DOCUMENTED.items() if kind == "histogram"]
    known = {*DOCUMENTED, *(f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count"))}
    assert set(re.findall(r"utxod_\w+", DOCUMENT)) <= known


def test_the_dashboard_uses_the_metrics() -> None:
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) >= len(panels) > 20
    used = set()
    for expression in expressions:
        names = re.findall(r"\butxod_\w+", expression)
        assert names, expression
        for name in names:
            plain = re.sub(r"_(bucket|sum|count)$", "", name)
            kind = DOCUMENTED.get(name) or DOCUMENTED.get(plain)
            assert kind, f"{name} is no metric: {expression}"
            assert (name not in DOCUMENTED) == (kind == "histogram"), expression
            used.add(name if name in DOCUMENTED else plain)
            if kind in {"counter", "histogram"}:
                assert re.search(rf"(rate|increase)\({name}\{{[^}}]*}}\[\$__rate_interval]\)", expression), expression
    unused = set(re.findall(r"`(utxod_\w+)`", re.findall(r"^Not on the dashboard: (.*)$", DOCUMENT, re.MULTILINE)[0]))
    assert used | unused == set(DOCUMENTED) and not used & unused
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
