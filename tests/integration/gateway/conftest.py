"""A gateway before a scripted scheduler, shared by the tests of a module and made clean for each."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from tests.support.gateway_house import House, gateway_house
from tests.support.scripted_scheduler import small_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_house(tokenizer: Tokenizer) -> AsyncIterator[House]:
    async with gateway_house(tokenizer) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def house(shared_house: House) -> House:
    scheduler = shared_house.scheduler
    await shared_house.until_ready()
    await shared_house.until_idle()
    scheduler.step_s = 0.0
    scheduler.say("fine")
    scheduler.submitted.clear()
    scheduler.aborted.clear()
    return shared_house
