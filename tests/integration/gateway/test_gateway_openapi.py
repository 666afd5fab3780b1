"""B025: schemathesis reads our OpenAPI document and tries to break what it describes."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from tokenizers import Tokenizer

from tests.support.gateway_house import House, gateway_house
from tests.support.scripted_scheduler import small_tokenizer

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


class Background:
    """A gateway in a thread of its own, for a client that blocks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.house: House | None = None

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with gateway_house(self._tokenizer) as house:
            house.scheduler.say("fine 😀")
            self.house = house
            self._started.set()
            await self._stop.wait()

    def __enter__(self) -> House:
        self._thread.start()
        assert self._started.wait(20)
        return self.house

    def __exit__(self, *args: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Background(small_tokenizer()) as house:
        yield f"http://127.0.0.1:{house.port}"


def test_b025_no_input_breaks_the_document(url: str) -> None:
    schema = schemathesis.openapi.from_url(url + "/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 11

    for operation in operations:
        num_examples = 30 if operation.method == "post" else 8
        good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        # Without parameters there is nothing to get wrong.
        bad = [operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)] if operation.method == "post" else []

        @given(case=st.one_of(good, *bad))
        @settings(max_examples=num_examples, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        def attack(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS)

        attack()
