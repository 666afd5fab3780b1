"""Settings: defaults < TOML file < DRUMLINE_* environment < flags. A service owns its model; this module only loads it.

    --config FILE or DRUMLINE_CONFIG=FILE  no file is picked up by itself: the current folder never changes what a service does
    [scheduler]                            one table a section, keys are field names
    max_num_seqs = 64
    DRUMLINE_SCHEDULER_MAX_NUM_SEQS=64     upper case; empty counts as unset; a list is comma-separated
    --max-num-seqs 64                      kebab case; a list field's flag is repeated

A name that nobody knows is never skipped: the process ends with status 2 and the nearest known name, whichever source it came from.
"""

import argparse
import difflib
import inspect
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliSettingsSource, EnvSettingsSource

from drumline.version import SOFTWARE_VERSION

BENCHES: Final = ("price", "curve", "perplexity", "gpu", "start", "step", "fleet", "mtp", "peers")
"""Commands behind `drumline bench` with settings of their own."""
SECTIONS: Final = ("gateway", "scheduler", "executor", "serve", "train_draft", "bench", *BENCHES)
"""Every table of the TOML file and every `DRUMLINE_<SECTION>_` of the environment."""
CONFIG_ENV: Final = "DRUMLINE_CONFIG"
_PREFIX: Final = "DRUMLINE_"
_COMMANDS: Final = {"train_draft": "train-draft", **{name: f"bench {name}" for name in BENCHES}}
"""Sections whose command is not their own name."""


class ServiceSettings(BaseModel):
    """Base of every service's settings: frozen, and an unknown key is an error.

    Field names are flag names (`max_num_seqs` -> `--max-num-seqs`), TOML keys (`[scheduler] max_num_seqs = 64`) and, upper-cased
    behind `DRUMLINE_<SECTION>_`, environment names (`DRUMLINE_SCHEDULER_MAX_NUM_SEQS`). Each field's description is
    its help text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


S = TypeVar("S", bound=ServiceSettings)


class SettingsError(Exception):
    """A source says something that no setting understands; the message names it and the nearest known name."""


def load(kind: type[S], *, section: str, argv: list[str]) -> S:
    """Settings of one service from all sources; exits with status 2 and the nearest known name on an unknown key.

    `--help` and `--version` print and exit with status 0.
    """
    prog = command_of(section)
    try:
        return resolve(kind, section=section, argv=argv, environ=os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{prog}: {error}\n(see {prog} --help)\n")
        raise SystemExit(2) from None


def resolve(kind: type[S], *, section: str, argv: list[str], environ: Mapping[str, str]) -> S:
    """As `load`, with the environment given and SettingsError raised instead of exiting."""
    flags, config = _from_flags(kind, section=section, argv=argv)
    path = config or environ.get(CONFIG_ENV)
    sources = {
        "flag": flags,
        "environment": _from_environment(kind, section=section, environ=environ),
        "file": _from_file(Path(path), section=section, known=kind.model_fields) if path else {},
    }
    merged = sources["file"] | sources["environment"] | sources["flag"]
    try:
        return kind.model_validate(merged)
    except ValidationError as error:
        told = [_explain(e, section=section, sources=sources) for e in error.errors(include_url=False)]
        raise SettingsError("; ".join(told)) from None


def command_of(section: str) -> str:
    """`curve` -> `drumline bench curve`."""
    return f"drumline {_COMMANDS.get(section, section)}"


def flag_of(field: str) -> str:
    """`max_num_seqs` -> `--max-num-seqs`."""
    return "--" + field.replace("_", "-")


def env_of(section: str, field: str) -> str:
    """`scheduler`, `max_num_seqs` -> `DRUMLINE_SCHEDULER_MAX_NUM_SEQS`."""
    return f"{_PREFIX}{section}_{field}".upper()


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the closest known name, or an empty string when nothing is close."""
    by_bare = {_bare(one): one for one in known}
    close = difflib.get_close_matches(_bare(name), by_bare, n=1, cutoff=0.5)
    return f"; did you mean {by_bare[close[0]]}?" if close else ""


def _bare(name: str) -> str:
    """What a name shares with every other of its source makes it no closer to any."""
    return name.lstrip("-").removeprefix(_PREFIX)


def _explain(error: Any, *, section: str, sources: Mapping[str, Mapping[str, Any]]) -> str:
    """One validation error, naming the field as its source spells it. The value itself may be a secret and is left out."""
    if not error["loc"]:
        return str(error["msg"])
    field = str(error["loc"][0])
    spelt = flag_of(field)
    if field not in sources["flag"]:
        spelt = env_of(section, field) if field in sources["environment"] else spelt
        spelt = f"[{section}] {field}" if field in sources["file"] and field not in sources["environment"] else spelt
    return f"{spelt}: {error['msg']}"


# ---------------------------------------------------------------------------------------------------------------- flags


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are raised, and which names the nearest flag for one that it does not know."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)

    def parse_strictly(self, args: list[str] | None = None, namespace: Any = None) -> argparse.Namespace:
        found, rest = self.parse_known_args(args, namespace)
        if not rest:
            return cast(argparse.Namespace, found)
        name = rest[0].split("=", 1)[0]
        if not name.startswith("-"):
            raise SettingsError(f"unexpected argument {name}")
        raise SettingsError(f"unknown flag {name}{nearest(name, self._option_string_actions)}")


def _from_flags(kind: type[S], *, section: str, argv: list[str]) -> tuple[dict[str, Any], str | None]:
    """What the command line says, and the file that it names."""
    parser = _Parser(
        prog=command_of(section),
        allow_abbrev=False,
        description=inspect.cleandoc(kind.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Weakest first: defaults, the file, the environment, flags. The file's table is [{section}], with _ for -.\n"
        "In the environment a list is a,b,c; as a flag it is repeated.",
    )
    parser.add_argument("--config", metavar="FILE", help=f"TOML file (default: ${CONFIG_ENV}, or none)")
    parser.add_argument("--version", action="version", version=f"drumline {SOFTWARE_VERSION}")

    def add_argument(group: Any, *names: str, **kwargs: Any) -> Any:
        """Help as people read it: what it means, the default, no Python types."""
        field = kind.model_fields[str(kwargs["dest"])]
        kwargs["help"] = f"{field.description or ''} ({_default_text(field)}; {env_of(section, str(kwargs['dest']))})".replace(
            "%", "%%"
        ).strip()
        if kwargs.get("metavar"):
            kwargs["metavar"] = _metavar(str(kwargs["metavar"]))
        return group.add_argument(*names, **kwargs)

    source: CliSettingsSource[Any] = CliSettingsSource(
        _as_settings(kind),
        root_parser=parser,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        parse_args_method=_Parser.parse_strictly,
        add_argument_method=add_argument,
    )
    namespace = parser.parse_strictly(argv)
    given = {k: v for k, v in vars(namespace).items() if k in kind.model_fields and v is not None}
    return dict(source(parsed_args=given)()), namespace.config


def _default_text(field: FieldInfo) -> str:
    """How the default reads in the help."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value == "" or value == ():
        return "default: none"
    if isinstance(value, tuple | list):
        return "default: " + ", ".join(map(str, value))
    return f"default: {str(value).lower() if isinstance(value, bool) else value}"


def _metavar(types: str) -> str:
    """What to type behind the flag; choices stay as they are."""
    if types.startswith("{"):
        return types
    if "int" in types:
        return "N"
    return "X" if "float" in types else "TEXT"


# -------------------------------------------------------------------------------------------------- environment and file


class _Environment(EnvSettingsSource):
    """The environment, with lists as people write them there: a,b,c (or JSON)."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        if isinstance(value, str) and not value.lstrip().startswith(("[", "{")):
            if not (items := [item.strip() for item in value.split(",") if item.strip()]):
                raise SettingsError(f"{field_name}: set, but nothing is in it")
            return items
        try:
            return super().decode_complex_value(field_name, field, value)
        except json.JSONDecodeError:
            raise SettingsError(f"{field_name}: neither a,b,c nor JSON") from None


def _from_environment(kind: type[S], *, section: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """What DRUMLINE_<SECTION>_* says. Names of other sections are theirs to judge; a name of no section is refused."""
    known = {env_of(section, field): field for field in kind.model_fields}
    others = tuple(f"{_PREFIX}{name.upper()}_" for name in SECTIONS if name != section)
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name != CONFIG_ENV and name not in known and not name.startswith(others):
            raise SettingsError(f"unknown environment name {name}{nearest(name, [*known, CONFIG_ENV])}")
    prefix = env_of(section, "")
    source = _Environment(_as_settings(kind), case_sensitive=True, env_prefix=prefix, env_ignore_empty=True)
    source.env_vars = {prefix + field: environ[name] for name, field in known.items() if environ.get(name)}
    return dict(source())


def _from_file(path: Path, *, section: str, known: Mapping[str, object]) -> dict[str, Any]:
    """Table [section] of the TOML file; tables and keys that nobody knows are refused."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {path}: not TOML: {error}") from None
    for table, content in document.items():
        if table in SECTIONS and not isinstance(content, dict):
            raise SettingsError(f"{path}: {table} is a value; it must be a table, [{table}]")
        if table not in SECTIONS:
            raise SettingsError(f"{path}: unknown table [{table}]{nearest(table, SECTIONS)}")
    values: dict[str, Any] = document.get(section, {})
    for key in values:
        if key not in known:
            raise SettingsError(f"{path}: unknown key {key} in [{section}]{nearest(key, known)}")
    return values


def _as_settings(kind: type[S]) -> type[BaseSettings]:
    """`kind` as pydantic-settings wants it. Only its sources are used: building a `kind` directly never reads the environment."""
    return cast(type[BaseSettings], create_model(kind.__name__, __base__=(kind, BaseSettings)))
