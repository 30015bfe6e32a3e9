"""Settings of facades that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.load import ConfigError, load


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[upstream]\nogmios = "http://n:1"', "[upstream] ogmios: expected ws://host:port or wss://host:port"),
        (
            '[chain]\nfamily = "bitcoin"\n[kupo]\nenabled = true',
            '[kupo] enabled: kupo needs chain.family = "cardano"',
        ),
        (
            '[kupo]\nenabled = true\nlisten = "0.0.0.0:8410"',
            "[kupo] listen: http.listen and kupo.listen need ports, or sockets, of their own: both have 8410",
        ),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "utxod.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(file, {})
    assert error.value.problems == (f"{file}: {expected}",)
