"""`drumline status`: absent data reads NA and why, never 0."""

import io
from typing import Any

import pytest
from rich.console import Console

from launcher import status as room
from launcher.client import ApiError, _pieces

EXECUTOR = {
    "address": "127.0.0.1:7101",
    "state": "ready",
    "num_resident": 3,
    "num_scheduled": 2,
    "plans_in_flight": 2,
    "num_blocks": 100,
    "num_blocks_used": 25,
    "num_blocks_cached": 0,
    "idle_fraction": 0.0125,
    "ragged_granted": True,
    "ragged_reason": "paged kernels keep a length per row",
    "device": "cpu",
    "precision": "f32",
    "kv_cache_dtype": "float16",
}
STATUS = {
    "num_waiting": 4,
    "num_waiting_tokens": 1234,
    "num_running": 3,
    "num_scheduled": 2,
    "num_preemptions": 0,
    "num_generated_tokens": 1000,
    "num_prompt_tokens": 500,
    "prefix_queries": 200,
    "prefix_hits": 50,
    "executors": [EXECUTOR],
}


def drawn(status: dict[str, Any], **more: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(room.render(status, **more))
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_everything_that_is_known_is_shown() -> None:
    text = drawn(STATUS)
    for part in ("waiting 4 (1,234 tokens)", "running 3", "scheduled 2", "prefix hits 25.0 %", "preemptions 0"):
        assert part in text
    assert "127.0.0.1:7101 ready 3 2 2 25.0 % 0.0 % 1.2 %" in text
    assert "cpu, f32, keys and values in float16; ragged rows granted: paged kernels keep a length per row" in text


def test_zero_is_shown_as_zero_and_absent_as_na_with_the_reason() -> None:
    text = drawn(STATUS | {"num_waiting": 0, "prefix_queries": 0, "prefix_hits": 0, "executors": []})
    assert "waiting 0" in text
    assert "prefix hits NA (no prompt was looked up yet)" in text
    assert "executors NA (none is known to the scheduler)" in text
    assert "tokens/s NA (one sample; --watch takes more)" in text


def test_an_executor_that_never_connected_has_no_numbers() -> None:
    text = drawn(STATUS | {"executors": [{"address": "x:1", "state": "connecting", "num_resident": 0, "num_blocks": 0}]})
    assert "x:1 connecting NA (not connected)" in text
    assert "idle" in text
    assert "NA (no step yet)" in text
    assert "ragged rows NA (not connected)" in text


def test_a_field_that_is_missing_is_not_zero() -> None:
    assert "running NA (not reported)" in drawn({"executors": [EXECUTOR]})


def test_a_refusal_names_its_reason() -> None:
    refused = EXECUTOR | {"ragged_granted": False, "ragged_reason": "asked to refuse"}
    assert "ragged rows refused: asked to refuse" in drawn(STATUS | {"executors": [refused]})


def test_tokens_per_second_come_from_two_samples() -> None:
    before = STATUS | {"num_generated_tokens": 900}
    assert "tokens/s 50.0" in drawn(STATUS, before=before, elapsed_s=2.0)
    assert "tokens/s NA (the scheduler was restarted)" in drawn(before, before=STATUS, elapsed_s=2.0)


def test_draining_is_said() -> None:
    assert "draining nothing new is taken" in drawn(STATUS | {"draining": True})


def test_an_error_in_a_stream_is_an_error() -> None:
    lines = [
        'data: {"choices":[{"delta":{"role":"assistant"}}]}',
        "",
        'data: {"choices":[{"delta":{"content":"a"}}]}',
        "data: [DONE]",
    ]
    assert list(_pieces(iter(lines))) == ["a"]
    with pytest.raises(ApiError, match="too late"):
        list(_pieces(iter(['data: {"error":{"message":"too late"}}'])))
