"""Settings: how the tool behaves, as one frozen object read from the environment. An argument beats a variable.

Nothing else in RedFuser reads these variables. docs/settings.md holds :func:`table`'s text; a test compares them.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from redfuser.errors import InputError

PREFIX = "REDFUSER_"


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: its name (the variable is REDFUSER_ and the name in capitals), its default as text, its allowed
    words (empty: anything), and what it does."""

    name: str
    default: str
    words: tuple[str, ...]
    doc: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


FIELDS: tuple[Field, ...] = (
    Field("cache_dir", "", (), "folder for built kernels and verdicts on certificates; default: the user's cache folder"),
    Field("logs", "", (), "what to log: `acrf,partition` at INFO, `+acrf` at DEBUG, `-acrf` errors only, `all`"),
    Field("trace", "", (), "folder that gets a folder per compile: each stage's text, the report, an error's trace; it holds "
          "the model's code but no weights"),
    Field("fallback", "warn", ("warn", "error", "allow"), "what to do with a cascade that does not fuse"),
    Field("target", "cpu", (), "the target when none is given: `cpu`, `cuda` (this machine's GPU), `sm_90a` ..."),
    Field("verify", "1", ("0", "1", "strict"), "re-check every certificate: one that does not hold keeps its cascade unfused "
          "(1), or is an error (strict, which also runs the numerical check); 0: no re-check, and the report says so"),
    Field("tuning", "cached", ("never", "cached", "quick", "full"), "which kernels: `never`, as the model of resources has "
          "them; `cached`, as tuning records say where there are some; `quick`, `full`: measure those without a record first"),
    Field("tuning_records", "", (), "file or folder of tuning records that beat all others"),
    Field("tuning_budget", "120", (), "seconds that `quick` and `full` may measure for"),
    Field("disable", "0", ("0", "1"), "1: fuse nothing; compiled models run the outer graph only"),
)


_told: set[str] = set()
"""Variables that are no settings, said once in a process and not at every compile."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings. ``sources`` says where each came from: ``default``, its variable, or ``argument``."""

    cache_dir: Path
    logs: str
    trace: Path | None
    fallback: str
    target: str
    verify: str
    tuning: str
    tuning_records: Path | None
    tuning_budget: float
    disable: bool
    sources: Mapping[str, str] = field(compare=False)


def load(env: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """The settings in force: each of ``arguments`` that is not None, else its variable in ``env`` (default: the
    process's), else the default. Raises InputError RF190 for an unknown name and RF191 for a value not allowed."""
    known = {f.name: f for f in FIELDS}
    for name in arguments:
        if name not in known:
            raise InputError("RF190", f"unknown setting {name!r}", help=_nearest(name, tuple(known)))
    env = os.environ if env is None else env
    for variable in env:
        if variable.startswith(PREFIX) and variable not in {f.variable for f in FIELDS} and variable not in _told:
            _told.add(variable)
            logging.getLogger("redfuser.settings").warning(
                "%s is not a setting; %s", variable, _nearest(variable, tuple(f.variable for f in FIELDS)))
    values, sources = {}, {}
    for f in FIELDS:
        if arguments.get(f.name) is not None:
            values[f.name], sources[f.name] = _text(arguments[f.name]), "argument"
        elif env.get(f.variable, ""):
            values[f.name], sources[f.name] = env[f.variable], f.variable
        else:
            values[f.name], sources[f.name] = f.default, "default"
        if f.words and values[f.name] not in f.words:
            raise InputError("RF191", f"{f.name} cannot be {values[f.name]!r}", where=sources[f.name],
                             why=f"it is one of {', '.join(f.words)}", help=_nearest(values[f.name], f.words))
    return Settings(
        cache_dir=Path(values["cache_dir"]).expanduser() if values["cache_dir"] else _user_cache_dir(),
        logs=values["logs"],
        trace=Path(values["trace"]).expanduser() if values["trace"] else None,
        fallback=values["fallback"],
        target=values["target"],
        verify=values["verify"],
        tuning=values["tuning"],
        tuning_records=Path(values["tuning_records"]).expanduser() if values["tuning_records"] else None,
        tuning_budget=_seconds("tuning_budget", values, sources),
        disable=values["disable"] == "1",
        sources=sources,
    )


def current() -> Settings:
    """The process's settings, read once per state of the environment."""
    return _cached(tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(PREFIX))))


@lru_cache(maxsize=8)
def _cached(env: tuple[tuple[str, str], ...]) -> Settings:
    return load(dict(env))


def table() -> str:
    """The settings as a Markdown table, for docs/settings.md."""
    rows = ["| variable | default | values | meaning |", "|---|---|---|---|"]
    for f in FIELDS:
        default = f"`{f.default}`" if f.default else "-"
        rows.append(f"| `{f.variable}` | {default} | {' '.join(f.words) or '-'} | {f.doc} |")
    return "\n".join(rows)


# -- logging -----------------------------------------------------------------------------------------------------------


def configure_logging(spec: str | None = None) -> None:
    """Set the levels of the loggers ``redfuser.<package>`` from a specification like ``+acrf,partition,-runtime``
    (default: the setting). Messages go to stderr. Without a specification nothing is touched: the application's
    logging rules. Raises InputError RF191 for a package that does not exist."""
    spec = current().logs if spec is None else spec
    if not spec:
        return
    root = logging.getLogger("redfuser")
    if not any(getattr(h, "redfuser", False) for h in root.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname).1s %(name)s: %(message)s"))
        handler.redfuser = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    folder = Path(__file__).parent
    packages = {p.stem for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()} - {"__init__"}
    for word in filter(None, (w.strip() for w in spec.split(","))):
        level = {"+": logging.DEBUG, "-": logging.ERROR}.get(word[0], logging.INFO)
        name = word.lstrip("+-")
        if name != "all" and name.split(".")[0] not in packages:
            raise InputError("RF191", f"no logger {name!r}", where=f"{PREFIX}LOGS",
                             help=_nearest(name, (*sorted(packages), "all")))
        (root if name == "all" else root.getChild(name)).setLevel(level)


def working_folder() -> Path | None:
    """The folder that this process is in; None where somebody has removed it, or may not be told."""
    try:
        return Path.cwd()
    except OSError:
        return None


# -- helpers -----------------------------------------------------------------------------------------------------------


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"one of {', '.join(known)}"


def _seconds(name: str, values: Mapping[str, str], sources: Mapping[str, str]) -> float:
    try:
        found = float(values[name])
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise InputError("RF191", f"{name} cannot be {values[name]!r}", where=sources[name], why="it is a number of seconds",
                         help="60, say")
    return found


def _text(value: Any) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def _user_cache_dir() -> Path:
    """The platform's cache folder; XDG's rule where platformdirs is missing (a machine that only runs artifacts)."""
    try:
        from platformdirs import user_cache_path
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "redfuser"
    return Path(user_cache_path("redfuser", appauthor=False))
