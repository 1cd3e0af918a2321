"""``redfuser cache``: what is in the store of built kernels."""

from __future__ import annotations

import time
from pathlib import Path

import click

from redfuser.cli.console import print_table
from redfuser.errors import InputError


@click.group()
def cache() -> None:
    """Look at the cache of built kernels."""


@cache.command("info")
def info() -> None:
    """Where the cache is, how large it is, and its cap."""
    from redfuser import settings
    from redfuser.cache import Cache

    store = Cache(settings.current().cache_dir)
    entries = store.entries()
    click.echo(f"{store.root}  {len(entries)} entries, {store.size() / 1e6:.1f} MB of {store.max_bytes / 1e6:.0f} MB")


@cache.command("prune")
@click.option("--all", "everything", is_flag=True, help="Remove every entry.")
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Remove entries not used for so many days.")
def prune(everything: bool, older_than: float | None) -> None:
    """Remove entries, remembered failures among them. They are made again when they are needed. Other files in the folder
    are left alone."""
    from redfuser import settings
    from redfuser.cache import Cache

    if everything == (older_than is not None):
        raise click.UsageError("give --all or --older-than DAYS")
    store = Cache(settings.current().cache_dir)
    if everything:
        click.echo(f"removed {store.clear()} entries")
        return
    assert older_than is not None
    limit = time.time() - 86400 * older_than
    old = [size for path, size, used in store.entries() if used < limit and store.remove(path.name)]
    click.echo(f"removed {len(old)} entries, {sum(old) / 1e6:.1f} MB")


@cache.command("why")
@click.argument("artifact", type=click.Path(dir_okay=False, path_type=Path))
def why(artifact: Path) -> None:
    """For each kernel of a compiled model: whether building it here again would hit the cache, and what its key covers."""
    import redfuser
    from redfuser import settings
    from redfuser.cache import Cache
    from redfuser.codegen import hip
    from redfuser.codegen.build import Request, cache_key
    from redfuser.strategies import cpu

    if not artifact.exists():
        raise InputError("RF192", f"no file {artifact}")
    store = Cache(settings.current().cache_dir)
    rows = []
    for name, spec in sorted(redfuser.load(str(artifact)).kernels.items()):
        if spec.kind != "cpu":
            key_of = cache_key if spec.kind == "cuda" else hip.cache_key
            key = key_of(Request(spec.source, spec.args, spec.name, spec.arch, spec.config))
        else:
            key = cpu.store_key(spec.source, spec.launches[0].entry, spec.arch)
        rows.append([name, key[:16], "hit" if store.path(key).exists() else "miss"])
    print_table("key: source text, arguments, architecture, configuration, versions of the compilers",
                ["kernel", "key", "cache"], rows)
