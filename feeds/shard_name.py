"""The type of options that name a shard."""

from __future__ import annotations

from typing import Any

import click

from formats.shards import Shard


class ShardName(click.ParamType[Shard]):
    """A shard as NUMBER/COUNT."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        """Return the shard."""
        try:
            return Shard.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
