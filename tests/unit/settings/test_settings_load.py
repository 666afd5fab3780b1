"""Settings: which source wins, what lists look like in each, and that an unknown name is an error naming the nearest one."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, ValidationError

from drumline.settings import ServiceSettings, SettingsError, load, nearest, resolve


class Example(ServiceSettings):
    """A service for tests."""

    port: int = Field(8000, ge=0, description="Port.")
    executor: tuple[str, ...] = Field((), description="Executors.")
    record: str | None = Field(None, description="Folder, 100 % optional.")
    detailed: bool = Field(True, description="A switch.")
    precision: Literal["f32", "bf16"] = Field("f32", description="Arithmetic.")


def made(argv: str = "", environ: dict[str, str] | None = None) -> Example:
    return resolve(Example, section="scheduler", argv=argv.split(), environ=environ or {})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "drumline.toml"
    path.write_text('[scheduler]\nport = 1\nexecutor = ["file:1"]\nprecision = "bf16"\n[gateway]\nanything = 1\n')
    return path


def test_defaults_hold_when_nothing_is_said() -> None:
    assert made() == Example()


def test_file_then_environment_then_flags(config: Path) -> None:
    environ = {"DRUMLINE_SCHEDULER_PORT": "2", "DRUMLINE_SCHEDULER_EXECUTOR": "env:1, env:2"}
    assert made(f"--config {config}").port == 1
    by_env = made(f"--config {config}", environ)
    assert (by_env.port, by_env.executor, by_env.precision) == (2, ("env:1", "env:2"), "bf16")
    by_flag = made(f"--config {config} --port 3 --executor flag:1 --executor flag:2", environ)
    assert (by_flag.port, by_flag.executor) == (3, ("flag:1", "flag:2"))


def test_the_file_may_be_named_by_the_environment(config: Path) -> None:
    assert made(environ={"DRUMLINE_CONFIG": str(config)}).port == 1


def test_no_file_is_picked_up_by_itself(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent)
    assert made().port == 8000


def test_an_empty_environment_value_is_unset() -> None:
    assert made(environ={"DRUMLINE_SCHEDULER_PORT": ""}).port == 8000


def test_a_list_in_the_environment_may_be_json() -> None:
    assert made(environ={"DRUMLINE_SCHEDULER_EXECUTOR": '["a:1", "b:2"]'}).executor == ("a:1", "b:2")


@pytest.mark.parametrize(("argv", "value"), [("", True), ("--detailed", True), ("--no-detailed", False)])
def test_a_switch_has_a_negative(argv: str, value: object) -> None:
    assert made(argv).detailed is value


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        ("--prot 1", {}, r"unknown flag --prot; did you mean --port\?"),
        ("--bogus", {}, "unknown flag --bogus$"),
        ("", {"DRUMLINE_XYZZY": "1"}, "unknown environment name DRUMLINE_XYZZY$"),
        ("--por 1", {}, r"unknown flag --por; did you mean --port\?"),
        ("--executors=a:1", {}, r"unknown flag --executors; did you mean --executor\?"),
        ("extra", {}, "unexpected argument extra"),
        ("--port", {}, "expected one argument"),
        ("--port x", {}, "--port: .*integer"),
        ("--port -1", {}, "--port: .*greater than or equal to 0"),
        ("--precision f33", {}, "--precision: Input should be 'f32' or 'bf16'"),
        ("--config no-such-file", {}, "no-such-file: No such file"),
        ("", {"DRUMLINE_SCHEDULER_PROT": "1"}, r"DRUMLINE_SCHEDULER_PROT; did you mean DRUMLINE_SCHEDULER_PORT\?"),
        ("", {"DRUMLINE_SHEDULER_PORT": "1"}, r"DRUMLINE_SHEDULER_PORT; did you mean DRUMLINE_SCHEDULER_PORT\?"),
        ("", {"DRUMLINE_SCHEDULER_PORT": "x"}, "DRUMLINE_SCHEDULER_PORT: .*integer"),
        ("", {"DRUMLINE_SCHEDULER_EXECUTOR": "[broken"}, "executor: neither a,b,c nor JSON"),
        ("", {"DRUMLINE_SCHEDULER_EXECUTOR": " , "}, "executor: set, but nothing is in it"),
    ],
)
def test_what_is_wrong_is_named_as_its_source_spells_it(argv: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made(argv, environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[scheduler]\nprot = 1", r"unknown key prot in \[scheduler\]; did you mean port\?"),
        ("[sheduler]\nport = 1", r"unknown table \[sheduler\]; did you mean scheduler\?"),
        ("port = 1", r"unknown table \[port\]"),
        ("scheduler = 3", r"scheduler is a value; it must be a table, \[scheduler\]"),
        ("[scheduler]\nport = 'x'", r"\[scheduler\] port: .*integer"),
        ("[scheduler", "not TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "d.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        made(f"--config {path}")


def test_other_services_names_are_theirs_to_judge() -> None:
    assert made(environ={"DRUMLINE_GATEWAY_WHATEVER": "1"}) == Example()


def test_load_exits_with_2_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        load(Example, section="scheduler", argv=["--prot", "1"])
    assert stop.value.code == 2
    assert "drumline scheduler: unknown flag --prot; did you mean --port?" in capsys.readouterr().err


def test_a_wrong_value_is_not_repeated_it_may_be_a_secret() -> None:
    with pytest.raises(SettingsError) as error:
        made("--port hunter2")
    assert "hunter2" not in str(error.value)


def test_help_tells_meaning_default_and_environment_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        load(Example, section="scheduler", argv=["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "A service for tests." in text
    assert "Port. (default: 8000; DRUMLINE_SCHEDULER_PORT)" in text
    assert "Folder, 100 % optional. (default: none; DRUMLINE_SCHEDULER_RECORD)" in text


def test_settings_are_frozen_and_building_one_directly_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMLINE_SCHEDULER_PORT", "5")
    settings = Example()
    assert settings.port == 8000
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]


def test_nothing_is_suggested_when_nothing_is_near() -> None:
    assert nearest("zzz", ["port"]) == ""
