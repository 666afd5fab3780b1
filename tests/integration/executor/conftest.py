"""One fake-backed executor process, shared by the tests of a module; each test opens its own, newer session."""

from collections.abc import AsyncIterator, Iterator

import pytest

from drumline.executor.v1.executor_pb2_grpc import ExecutorStub
from tests.support.executor_process import ExecutorProcess, stub_of


@pytest.fixture(scope="module")
def executor() -> Iterator[ExecutorProcess]:
    with ExecutorProcess(
        "--max-model-len", "128", "--max-num-seqs", "8", "--num-blocks", "64", "--max-num-batched-tokens", "256"
    ) as it:
        yield it
        assert it.is_alive


@pytest.fixture
async def stub(executor: ExecutorProcess) -> AsyncIterator[ExecutorStub]:
    async with stub_of(executor.target) as it:
        yield it
