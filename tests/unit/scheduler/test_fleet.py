"""Who may join a fleet, and what is said of one that computes differently."""

import logging

import pytest

from drumline.executor.v1.executor_pb2 import GetCapabilitiesResponse
from scheduler_svc.fleet import Fleet

FIRST = {"model_digest": "m", "precision": "int8", "kv_cache_dtype": "float16", "device": "cpu (znver4, 2 threads)"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ""),
        ({"device": "cpu (icelake, 8 threads)"}, ""),
        ({"precision": "f32"}, "f32 on cpu, keys and values in float16, the first one in int8 on cpu"),
        ({"kv_cache_dtype": ""}, "int8 on cpu, keys and values in float32"),
        ({"device": "cuda:0"}, "int8 on cuda:0"),
    ],
)
def test_an_executor_that_computes_differently_joins_with_a_warning(change, told, caplog):
    fleet = Fleet(epoch=1)
    with caplog.at_level(logging.WARNING):
        fleet.join("first", GetCapabilitiesResponse(**FIRST), model=None)
        fleet.join("second", GetCapabilitiesResponse(**{**FIRST, **change}), model=None)
    assert bool(caplog.messages) is bool(told)
    assert all("executor=second" in message and told in message for message in caplog.messages)
