"""The configuration: defaults, precedence, errors, and reading back what is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import inspect

from config import load as loading
from config.checks import problems
from config.kinds import Secret
from config.load import ConfigError, load
from config.serving import Http
from config.settings import Config, Recovery, socket_path
from config.show import render, template
from config.tree import SETTINGS, Setting, special
from config.units import format_duration, format_size, parse_duration, parse_endpoint, parse_size

UNSET = ("kupo.listen", "blockfrost.listen", "ogmios.listen", "electrum.tls_listen")
MIB = 1024 * 1024

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def no_file_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading, "DEFAULT_FILE", tmp_path / "etc.toml")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write utxod.toml into the working directory and return the name by which errors call it."""

    def write_text(text: str) -> Path:
        (tmp_path / "utxod.toml").write_text(text)
        return Path("utxod.toml")

    return write_text


def errors(path: Path | None, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def as_dicts(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: as_dicts(inner) for name, inner in msgspec.structs.asdict(value).items()}
    return value


def test_every_setting_is_described() -> None:
    for setting in SETTINGS.values():
        assert re.fullmatch(r"[A-Z$].{15,}\.", setting.description), setting.name
        assert setting.expects


def test_file_sets_what_it_names_and_nothing_else(write: Write) -> None:
    config = load(
        write('data_dir = "here"\n[utxo]\nprune_depth = 0\nindex.policy = true\n[batch]\nmax_bytes = 5\n'), {}
    )
    expected = as_dicts(Config())
    expected["data_dir"] = Path("here")
    expected["utxo"]["prune_depth"] = 0
    expected["utxo"]["index"]["policy"] = True
    expected["batch"]["max_bytes"] = 5
    assert as_dicts(config) == expected


def test_argument_beats_variable_beats_default_file(tmp_path: Path) -> None:
    def network(path: Path | None, environ: dict[str, str]) -> str:
        return load(path, environ).chain.network

    for name in ("etc", "variable", "argument"):
        (tmp_path / f"{name}.toml").write_text(f'[chain]\nnetwork = "{name}"')
    variable = {"UTXOD_CONFIG": "variable.toml"}
    assert network(None, {}) == "etc"
    assert network(None, {"UTXOD_CONFIG": ""}) == "etc"
    assert network(None, variable) == "variable"
    assert network(Path("argument.toml"), variable) == "argument"
    assert network(Path("argument.toml"), {**variable, "UTXOD_CHAIN__NETWORK": "value"}) == "value"
    (tmp_path / "etc.toml").write_text("[chain]\nnetwork = 5")
    assert network(None, {"UTXOD_CHAIN__NETWORK": "value"}) == "value"


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("UTXOD_DATA_DIR", "/srv/x", Path("/srv/x")),
        ("UTXOD_SOCKET__PATH", "run/u.sock", Path("run/u.sock")),
        ("UTXOD_UTXO__INDEX__ADDRESS_HASH", "No", False),
        ("UTXOD_UTXO__INDEX__ADDRESS_HASH", "0", False),
        ("UTXOD_UTXO__INDEX__ADDRESS_HASH", "false", False),
        ("UTXOD_UTXO__INDEX__POLICY", "TRUE", True),
        ("UTXOD_UTXO__INDEX__POLICY", "1", True),
        ("UTXOD_UTXO__INDEX__POLICY", "yes", True),
        ("UTXOD_UTXO__PRUNE_DEPTH", " 7 ", 7),
        ("UTXOD_RECOVERY__ADVISORY_LOCK_ID", "-5", -5),
        ("UTXOD_SOCKET__ADMIN_UIDS", "1000, 1001", (1000, 1001)),
        ("UTXOD_SOCKET__ADMIN_UIDS", "[1000,1001]", (1000, 1001)),
        ("UTXOD_SOCKET__ADMIN_UIDS", "", ()),
        ("UTXOD_RECOVERY__TTL", "1.5h", 5400.0),
        ("UTXOD_RECOVERY__TTL", "90", 90.0),
        ("UTXOD_BATCH__MAX_BYTES", "2 MiB", 2 * MIB),
        ("UTXOD_BATCH__MAX_BYTES", "4096", 4096),
        ("UTXOD_HTTP__LISTEN", "unix:/run/http.sock", "unix:/run/http.sock"),
        ("UTXOD_HTTP__LISTEN", "[::1]:0", "[::1]:0"),
        ("UTXOD_TRANSACTIONS__BLOB_STORE", "s3://bucket/blobs", "s3://bucket/blobs"),
        ("UTXOD_CHAIN__FAMILY", "raw", "raw"),
    ],
)
def test_environment_is_read_by_type(variable: str, text: str, expected: object) -> None:
    config: Any = load(None, {variable: text})
    for name in variable.removeprefix("UTXOD_").lower().split("__"):
        config = getattr(config, name)
    assert config == expected
    assert type(config) is type(expected)


def test_other_variables_are_ignored() -> None:
    environ = {"UTXOD_CHAIN_DATA": "/x", "UTXOD_REQUIRE_CHAIN_DATA": "1", "PATH": "/bin", "UTXO_X": "1"}
    assert load(None, environ) == Config()


def test_systemd_directories_are_defaults(write: Write) -> None:
    environ = {"STATE_DIRECTORY": "/var/lib/utxod:/var/lib/other", "RUNTIME_DIRECTORY": "/run/utxod:/run/other"}
    config = load(None, environ)
    assert config.data_dir == Path("/var/lib/utxod")
    assert socket_path(config, environ) == Path("/run/utxod/utxod.sock")
    assert socket_path(config, {}) == Path("/var/lib/utxod/utxod.sock")
    named = load(write('data_dir = "mine"\n[socket]\npath = "s"\n'), environ)
    assert (named.data_dir, socket_path(named, environ)) == (Path("mine"), Path("s"))


STRATEGIES = '"address_hash", "payment_credential", "both"'
WHOLE = "expected a whole number, at least 0, at most 1000000000"
DURATION = "expected a duration such as 30s, 5m, 1h, 500ms"
SIZE = "expected a size such as 64MiB, 1GiB, 4096"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[utxo]\nprune_dept = 1", "[utxo] prune_dept: unknown name, did you mean prune_depth?"),
        ("[utxo.index]\npolicies = true", "[utxo.index] policies: unknown name, did you mean policy?"),
        ("[prunner]", "prunner: unknown name, did you mean pruner?"),
        ("prune_depth = 1", "prune_depth: unknown name, did you mean [utxo] prune_depth?"),
        ("[http]\nstore = 1", "[http] store: unknown name, did you mean [utxo] store or [recovery] store?"),
        ("[batch]\nzzz = 1", "[batch] zzz: unknown name, known names: max_bytes, max_delay_ms"),
        ('"utxo.prune_depth" = 1', '"utxo.prune_depth": unknown name, did you mean [utxo] prune_depth?'),
        ('"a\\nb" = 1\ndata_dir = "x"', '"a\\nb": unknown name, known names: ' + ", ".join(Config.__struct_fields__)),
        ("utxo = 3", "utxo: expected a table, written [utxo]"),
        ("[[utxo.index]]", "[utxo] index: expected a table, written [utxo.index]"),
        ("[utxo.prune_depth]", "[utxo] prune_depth: {}: " + WHOLE),
        ('[utxo]\nprune_depth = "5"', '[utxo] prune_depth: "5": ' + WHOLE),
        ("[utxo]\nprune_depth = true", "[utxo] prune_depth: true: " + WHOLE),
        ("[utxo]\nprune_depth = -1", "[utxo] prune_depth: -1: " + WHOLE),
        (f"[utxo]\nprune_depth = {10**100}", f"[utxo] prune_depth: {'1' + '0' * 76}...: {WHOLE}"),
        ("[utxo]\nprune_depth = 1.5", "[utxo] prune_depth: 1.5: " + WHOLE),
        ("[utxo]\nenabled = 1", "[utxo] enabled: 1: expected true or false"),
        ('[utxo]\nstore = "mrr"', '[utxo] store: "mrr": expected one of "classic", "mmr"'),
        ('[chain]\nnetwork = ""', '[chain] network: "": expected a text that is not empty'),
        ('data_dir = ""', 'data_dir: "": expected a text that is not empty'),
        ("data_dir = 1979-05-27", 'data_dir: "1979-05-27": expected a text that is not empty'),
        ('[pruner]\njob_timeout = "30 sekunden"', f'[pruner] job_timeout: "30 sekunden": {DURATION}, more than 0s'),
        ("[pruner]\njob_timeout = 0", f"[pruner] job_timeout: 0: {DURATION}, more than 0s"),
        ('[recovery]\nlease_duration = "900ms"', f'[recovery] lease_duration: "900ms": {DURATION}, at least 1s'),
        ("[batch]\nmax_bytes = 0", f"[batch] max_bytes: 0: {SIZE}, at least 1B"),
        (
            "[socket]\nadmin_uids = [-1]",
            "[socket] admin_uids: [-1]: expected a list, each item a whole number, at least 0",
        ),
        ('[http]\nlisten = "8410"', '[http] listen: "8410": expected host:port or unix:/path'),
        ("[http]\nlisten = 8410", "[http] listen: 8410: expected host:port or unix:/path"),
        (
            '[storage]\nmax_map_size = "512MiB"',
            "[storage] max_map_size: map_size 1GiB is more than max_map_size, 512MiB",
        ),
        ('[recovery]\nstore = "postgresql"', '[recovery] store: store = "postgresql" needs dsn, the database URL'),
        ('[recovery]\ndsn = "pw@host"', "[recovery] dsn: expected postgresql://user@host/database"),
        ('[recovery]\nnode_url = "pw@host"', "[recovery] node_url: expected http://host:port"),
        ('[recovery]\nattempt_timeout = "5s"', "[recovery] attempt_timeout: expected 0 (no limit) or at least 10s"),
        ('[socket]\npath = "/s"\n[http]\nlisten = "unix:/s"', "[http] listen: http.listen and socket.path are both /s"),
        (
            '[http]\nallowed_hosts = ["a.example", "fd00::1", "*", "https://b.example"]',
            "[http] allowed_hosts: https://b.example: expected a name such as utxod.example.org, "
            'without scheme and port, or "*"',
        ),
        (
            '[http]\nallowed_hosts = ["b.example:443"]',
            "[http] allowed_hosts: b.example:443: expected a name such as utxod.example.org, "
            'without scheme and port, or "*"',
        ),
        (f'[socket]\npath = "/{"ß" * 54}"', f"[socket] path: a Unix socket's path has at most 107 bytes: /{'ß' * 54}"),
        (
            f'[http]\nlisten = "unix:/{"s" * 107}"',
            f"[http] listen: a Unix socket's path has at most 107 bytes: /{'s' * 107}",
        ),
        (
            '[transactions]\nblob_store = "blobs"',
            '[transactions] blob_store: "blobs": expected file:folder or s3://bucket/prefix',
        ),
        ('[utxo.index]\nstrategy = "all"', f'[utxo.index] strategy: "all": expected one of {STRATEGIES}'),
        ('[upstream]\nogmios = "http://n:1"', "[upstream] ogmios: expected ws://host:port or wss://host:port"),
        ('[chain]\nfamily = "bitcoin"\n[kupo]\nenabled = true', '[kupo] enabled: kupo needs chain.family = "cardano"'),
        (
            '[kupo]\nenabled = true\nlisten = "0.0.0.0:8410"',
            "[kupo] listen: http.listen and kupo.listen must listen on different ports or sockets: both have 8410",
        ),
    ],
)
def test_error_in_the_file_names_its_place(write: Write, text: str, expected: str) -> None:
    assert errors(write(text)) == [f"utxod.toml: {expected}"]


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("UTXOD_UTXO__PRUNE_DEPT", "1", "unknown name, did you mean UTXOD_UTXO__PRUNE_DEPTH?"),
        ("UTXOD_HTTP_LISTEN", "1", "unknown name, did you mean UTXOD_HTTP__LISTEN?"),
        ("UTXOD_STORAGE", "1", "unknown name, did you mean UTXOD_STORAGE__MAP_SIZE?"),
        ("UTXOD_UTXO__ENABLED", "on", '"on": expected true or false'),
        ("UTXOD_UTXO__PRUNE_DEPTH", "two", f'"two": {WHOLE}'),
        ("UTXOD_UTXO__PRUNE_DEPTH", "", f'"": {WHOLE}'),
        ("UTXOD_SOCKET__ADMIN_UIDS", "1,x", '"1,x": expected a list, each item a whole number, at least 0'),
        (
            "UTXOD_SOCKET__ADMIN_UIDS",
            "9" * 5000,
            f'"{"9" * 76}...: expected a list, each item a whole number, at least 0',
        ),
        ("UTXOD_RECOVERY__TTL", "soon", f'"soon": {DURATION}, more than 0s'),
        ("UTXOD_STORAGE__MAP_SIZE", "1KiB", f'"1KiB": {SIZE}, at least 1MiB, at most 128TiB'),
        ("UTXOD_SOCKET__PATH", "", '"": expected a text that is not empty'),
        ("UTXOD_RECOVERY__STORE", "postgresql", 'store = "postgresql" needs dsn, the database URL'),
    ],
)
def test_error_in_the_environment_names_its_variable(variable: str, text: str, expected: str) -> None:
    assert errors(None, {variable: text}) == [f"{variable}: {expected}"]


def test_all_problems_are_reported_together(write: Write) -> None:
    path = write('[utxo]\nprune_dept = 1\nrollback_window = -1\n[log]\nlevel = "loud"\n')
    places = [line.split(": ")[0:2] for line in errors(path, {"UTXOD_HTTP__WORKERS": "x", "UTXOD_X": "1"})]
    assert sorted(places) == [
        ["UTXOD_HTTP__WORKERS", '"x"'],
        ["UTXOD_X", "unknown name, `utxod config show` has all names"],
        ["utxod.toml", "[log] level"],
        ["utxod.toml", "[utxo] prune_dept"],
        ["utxod.toml", "[utxo] rollback_window"],
    ]


def test_missing_file_is_an_error_only_when_named() -> None:
    assert errors(Path("no.toml")) == ["no.toml: this file does not exist"]
    assert errors(None, {"UTXOD_CONFIG": "no.toml"}) == ["no.toml: this file does not exist, but UTXOD_CONFIG names it"]


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "etc.toml").mkdir()
    assert errors(None) == [f"{tmp_path}/etc.toml: cannot be read: Is a directory"]
    (tmp_path / "latin.toml").write_bytes(b"# a\n[chain]\nnetwork = '\xfc'\n")
    assert errors(Path("latin.toml")) == ["latin.toml: not UTF-8 (at line 3)"]


def test_toml_syntax_error_names_its_line(write: Write) -> None:
    found = errors(write("[utxo]\nprune_depth = \n"), {"UTXOD_HTTP__WORKERS": "x"})
    assert found[0] == "utxod.toml: Invalid value (at line 2, column 15)"
    assert len(found) == 2
    assert errors(write("[utxo]\nstore = 'mmr")) == ['utxod.toml: Expected "\'" (at line 2, the end)']


def test_values_at_their_limits_are_accepted(write: Write) -> None:
    load(write(f'[storage]\nmap_size = "2TiB"\nmax_map_size = "2TiB"\n[socket]\npath = "/{"s" * 106}"'), {})
    load(write('[recovery]\nenabled = false\nstore = "postgresql"'), {})
    load(write('[socket]\npath = "/s"\n[http]\nworkers = 0\nlisten = "unix:/s"'), {})
    assert load(write('[http]\nlisten = "h:65535"'), {}).http.listen == "h:65535"


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [("address_hash", (True, False)), ("payment_credential", (False, True)), ("both", (True, True))],
)
def test_strategy_sets_two_switches(write: Write, strategy: str, kept: tuple[bool, bool]) -> None:
    in_file = load(write(f'[utxo.index]\nstrategy = "{strategy}"\npolicy = true'), {})
    path = write('[utxo.index]\nstrategy = "both"\npolicy = true')
    for config in (in_file, load(path, {"UTXOD_UTXO__INDEX__STRATEGY": strategy})):
        index = config.utxo.index
        assert (index.address_hash, index.payment_credential, index.policy, index.strategy) == (*kept, True, None)
    assert load(write(render(in_file)), {}) == in_file


def test_strategy_and_an_index_that_it_sets_conflict(write: Write) -> None:
    here, there = "utxod.toml: [utxo.index] ", "UTXOD_UTXO__INDEX__"
    both = '[utxo.index]\nstrategy = "both"\naddress_hash = true\npayment_credential = false'
    assert errors(write(both)) == [
        f"{here}strategy: sets address_hash too, as does {here}address_hash: remove one of them",
        f"{here}strategy: sets payment_credential too, as does {here}payment_credential: remove one of them",
    ]
    path = write("[utxo.index]\naddress_hash = false")
    assert errors(path, {there + "STRATEGY": "both"}) == [
        f"{there}STRATEGY: sets address_hash too, as does {here}address_hash: remove one of them"
    ]
    path = write('[utxo.index]\nstrategy = "payment_credential"')
    assert errors(path, {there + "PAYMENT_CREDENTIAL": "yes"}) == [
        f"{here}strategy: sets payment_credential too, as does {there}PAYMENT_CREDENTIAL: remove one of them"
    ]


def test_a_shard_is_a_number_of_a_count(write: Write) -> None:
    assert load(write('[cluster]\nshard = "8/8"'), {}).cluster.shard == "8/8"
    for text in ("9/8", "0/8", "3", "03/8", "1/1025"):
        (wrong,) = errors(write(f'[cluster]\nshard = "{text}"'))
        assert wrong.startswith("utxod.toml: [cluster] shard: ") and 'such as "3/8"' in wrong
    wallets = '[chain]\nfamily = "bitcoin"\n[utxo.index]\nhistory = true\n[electrum]\nenabled = true\n'
    (wrong,) = errors(write(f'{wallets}[cluster]\nshard = "1/2"'))
    assert "electrum needs all outputs" in wrong


def test_secrets_are_never_shown(write: Write) -> None:
    environ = {"UTXOD_HTTP__TOKEN": "hush", "UTXOD_RECOVERY__DSN": "postgresql://u:hush@h/d"}
    config = load(None, environ)
    assert config.http.token == "hush"
    shown = render(config)
    assert shown.count('"***"') == 2
    assert "hush" not in shown + repr(config) + repr(Secret("hush"))
    assert "hush" not in str(errors(write('[http]\ntoken = ["hush"]\n[recovery]\ndsn = 7')))
    assert "hush" not in str(errors(None, {"UTXOD_RECOVERY__DSN": "hush"}))


def test_mask_is_refused_as_a_secret(write: Write) -> None:
    path = write(render(Config(http=Http(token=Secret("hush")))))
    expected = 'utxod.toml: [http] token: expected a text that is not empty and not the mask "***"'
    assert errors(path) == [expected]
    assert load(path, {"UTXOD_HTTP__TOKEN": "hush"}).http.token == "hush"


def values_of(setting: Setting) -> st.SearchStrategy[Any]:
    special_cases = {
        **dict.fromkeys(UNSET, st.none()) | dict.fromkeys(("electrum.listen", "esplora.listen"), st.just("h:1")),
        "http.listen": st.sampled_from(["[::]:1", "h:0", "unix:a b"]),
        "transactions.blob_store": st.sampled_from(["file:/x", "s3://b"]),
    }
    match setting.kind:
        case _ if setting.secret:
            return st.none()
        case _ if setting.name in special_cases:
            return special_cases[setting.name]
        case inspect.BoolType():
            return st.booleans()
        case inspect.LiteralType(values=choices):
            return st.sampled_from(choices)
        case inspect.IntType(ge=low, le=high):
            return st.integers(low, high)
        case inspect.FloatType(ge=low, gt=above):
            return st.floats(
                above if low is None else low, exclude_min=low is None, allow_nan=False, allow_infinity=False
            )
        case inspect.VarTupleType(item_type=inspect.StrType()):
            return st.lists(st.text(min_size=1)).map(tuple)
        case inspect.VarTupleType():
            return st.lists(st.integers(0, 2**32)).map(tuple)
        case inspect.CustomType():
            return st.text(min_size=1, max_size=20).map(Path)
        case _:
            return st.text(min_size=1)


HELPER = "utxo.index.strategy"  # it sets others, so that it is never in force itself


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Return any configuration without secrets; each value is valid by itself."""
    tree: dict[str, Any] = {}
    for name in draw(st.sets(st.sampled_from(sorted(SETTINGS.keys() - {HELPER})))):
        *tables, key = name.split(".")
        inner = tree
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[key] = draw(values_of(SETTINGS[name]))
    return msgspec.convert(tree, Config, dec_hook=special)


@given(configs())
@example(Config(data_dir=Path('a"\\\x7f\n\t é/😀'), recovery=Recovery(ttl=0.1, instance_id="#")))
@example(Config(http=Http(allowed_hosts=("é😀", "\x7f"))))
def test_what_is_shown_reads_back(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    path = tmp_path_factory.getbasetemp() / "shown.toml"
    path.write_bytes(render(config).encode())
    if found := problems(config):
        assert len(errors(path)) == len(found)
    else:
        assert load(path, {}) == config


def test_shipped_file_is_in_step_with_the_code() -> None:
    shipped = Path(__file__).parent.parent / "systemd" / "utxod.toml"
    assert shipped.read_text() == template(), "write config.show.template() into systemd/utxod.toml"


def test_shipped_file_has_every_setting_commented_out(write: Write) -> None:
    assert load(write(template()), {}) == Config()
    offered = re.sub(r"^# (?=[a-z_]+ = )", "", template(), flags=re.MULTILINE)
    assert errors(write(offered))[0].startswith("utxod.toml: [utxo.index] strategy: ")
    config = load(write(offered.replace('strategy = "both"\n', "")), {})
    examples = {name: setting.example for name, setting in SETTINGS.items() if setting.example and name != HELPER}
    assert examples.keys() == {
        *("socket.path", "http.token", "pruner.unmined_retention"),
        *(*UNSET, "blockfrost.genesis", "electrum.certificate", "electrum.private_key"),
        *("upstream.ogmios", "upstream.protocol_parameters", "upstream.bitcoin", "upstream.bitcoin_cookie"),
        *("recovery.dsn", "recovery.instance_id", "recovery.node_url", "recovery.node_cookie"),
        *("cluster.stream", "cluster.shard"),
    }
    replaced = as_dicts(config)
    for name, text in examples.items():
        table, key = name.split(".")
        assert str(replaced[table][key]) == str(text)
        replaced[table][key] = None
    assert replaced == as_dicts(Config())


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False) | st.integers(0, 10**9).map(lambda ms: ms / 1000))
def test_duration_round_trip(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds
    assert parse_duration(seconds) == seconds


@given(st.integers(min_value=0) | st.integers(0, 2**10).map(lambda kib: kib << 10))
def test_size_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size
    assert parse_size(size) == size


def test_units_are_exact_and_shown_in_the_largest_that_fits() -> None:
    assert [parse_duration(text) for text in ("500ms", "0.1s", "1.1m", "1h", "2d", "30 s")] == [
        *(0.5, 0.1, 66.0, 3600.0, 172800.0, 30.0)
    ]
    assert [format_duration(s) for s in (0, 0.0015, 0.5, 90, 600.0, 5400, 172800)] == [
        *("0s", "0.0015s", "500ms", "90s", "10m", "90m", "2d")
    ]
    assert [parse_size(text) for text in ("1.5KiB", "64MiB", "0", "7B")] == [1536, 64 * MIB, 0, 7]
    assert [format_size(size) for size in (0, 1023, 1536, 64 * MIB)] == ["0B", "1023B", "1536B", "64MiB"]


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 hour", "1h30m", "1,5s", "1e3", "inf", "٣s", "9" * 400 + "d", None, float("nan"), True]
)
def test_malformed_durations_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 30s, 5m, 1h, 500ms"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "MiB", "-1", "64MB", "64mib", "1.5B", "0.3KiB", 0.5, False, None])
def test_malformed_sizes_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a size such as 64MiB"):
        parse_size(text)


def test_endpoints() -> None:
    assert parse_endpoint("localhost:80") == ("localhost", 80)
    assert parse_endpoint("[::1]:80") == ("::1", 80)
    assert parse_endpoint("unix:/run/x") == Path("/run/x")
    for text in ("localhost", ":80", "::1:80", "h:", "h:x", "http://h:80", "unix:", "h:65536"):
        with pytest.raises(ValueError, match="expected host:port or unix:/path"):
            parse_endpoint(text)
