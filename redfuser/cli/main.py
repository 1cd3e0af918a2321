"""The command ``redfuser``. Each command imports what it needs when it runs, so ``--help`` is instant and a machine that
only runs artifacts needs no compiler. Exit codes: 0 fine, 1 error, 2 usage, 3 coverage, 4 numerics, 5 regression."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

COMMANDS = {
    "compile": ("redfuser.cli.compile", "compile_", "Compile a model and save it."),
    "build": ("redfuser.cli.build", "build", "Finish kernels that are text, with this machine's ROCm."),
    "explain": ("redfuser.cli.explain", "explain", "Say what fuses in a model, what does not, and why."),
    "algebra": ("redfuser.cli.algebra", "algebra", "Derive and prove the fusion of a cascade given as text."),
    "inspect": ("redfuser.cli.inspect", "inspect", "Say what a saved model holds, and what of it runs here."),
    "check": ("redfuser.cli.check", "check", "Hold a saved model's kernels against torch, where they run."),
    "tune": ("redfuser.cli.tune", "tune", "Measure which kernels are fastest, and remember it."),
    "bench": ("redfuser.cli.bench", "bench", "Build and measure the workloads."),
    "cache": ("redfuser.cli.cache", "cache", "Look at the cache of built kernels."),
    "doctor": ("redfuser.cli.doctor", "doctor", "Check this machine: versions, compilers, GPU, settings."),
}


class Lazy(click.Group):
    """A group whose commands are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        from redfuser.cli.console import guard
        from redfuser.settings import configure_logging

        with guard():
            configure_logging()
            return super().invoke(ctx)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="redfuser")
def cli() -> None:
    """RedFuser finds cascaded reductions in a model, proves how they fuse, and runs the model with generated kernels."""


def main() -> None:
    """Entry point of the console script."""
    from redfuser.cli.console import complete_streams

    complete_streams()
    sys.exit(cli(prog_name="redfuser"))


if __name__ == "__main__":
    main()
