"""Every race of a healthy seam, over real gRPC: plans in flight, early finishes, aborts, preemption, slot reuse."""

import asyncio

import pytest

from drumline.common.v1 import common_pb2
from tests.support.raw_gateway import RawGateway, sequence
from tests.support.scheduler_house import address_of, house, idle, until
from tests.support.scripted_executor import ScriptedExecutor
from tests.support.scripted_tokens import expected_tokens

PROMPT = list(range(10, 30))


async def test_tokens_arrive_as_the_executor_made_them() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        one, two = await gateway.submit(sequence(PROMPT, max_tokens=9, seed=1), sequence([5], max_tokens=4, seed=2))
        await gateway.done(one, two)
        assert gateway.tokens[one] == expected_tokens(PROMPT, 1, 9)
        assert gateway.tokens[two] == expected_tokens([5], 2, 4)
        assert gateway.finished == {one: common_pb2.FINISH_REASON_LENGTH, two: common_pb2.FINISH_REASON_LENGTH}
        assert gateway.cached == {one: 0, two: 0}
        assert gateway.welcome.model_digest == executor.caps.model_digest
        await idle(process)


async def test_two_plans_are_in_flight_and_one_message_a_step() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.delay_s = 0.01
        handles = await gateway.submit(*[sequence([i], max_tokens=20, seed=i + 1) for i in range(4)])
        await gateway.done(*handles)
        assert executor.most_in_flight == 2
        assert any(plan.repeat_rows for plan in executor.plans)
        steady = [message for message in gateway.messages if len(message.handles) == 4 and not message.num_tokens]
        assert len(steady) >= 15
        await idle(process)


async def test_one_plan_in_flight_where_the_settings_say_so() -> None:
    async with (
        ScriptedExecutor() as executor,
        house(executor, plans_in_flight=1) as process,
        RawGateway(address_of(process)) as gateway,
    ):
        executor.delay_s = 0.005
        await gateway.done(*await gateway.submit(sequence(PROMPT, max_tokens=10)))
        assert executor.most_in_flight == 1


async def test_row_that_finishes_in_a_step_is_skipped_in_the_next() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.ends_early = lambda resident: resident.num_prompt == 3 and resident.num_emitted == 5
        short, long = await gateway.submit(sequence([1, 2, 3], max_tokens=50, seed=3), sequence([4, 5], max_tokens=30, seed=4))
        await gateway.done(short, long)
        assert gateway.tokens[short] == expected_tokens([1, 2, 3], 3, 5)
        assert gateway.finished[short] == common_pb2.FINISH_REASON_STOP
        assert gateway.tokens[long] == expected_tokens([4, 5], 4, 30)
        assert any(result.skipped_row for result in executor.results)
        await idle(process)


async def test_abort_while_plans_are_in_flight() -> None:
    """B057: what comes late for an aborted sequence is dropped; its neighbour goes on."""
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        gone, stays = await gateway.submit(sequence([1], max_tokens=200), sequence([2], max_tokens=25, seed=5))
        await gateway.until(lambda: len(gateway.tokens[gone]) > 3)
        executor.gate.clear()
        await until(lambda: executor.most_in_flight == 2 and len(executor.plans) > len(executor.results))
        await gateway.abort(gone, 4711)
        await asyncio.sleep(0.05)
        seen = len(gateway.tokens[gone])
        executor.gate.set()
        await gateway.done(stays)
        assert gateway.tokens[stays] == expected_tokens([2], 5, 25)
        assert len(gateway.tokens[gone]) == seen, "tokens after the abort"
        assert process.engine.routes.num_unknown_aborts == 1
        await idle(process)


@pytest.mark.parametrize("early", [False, True], ids=["in turn", "on arrival"])
async def test_abort_may_take_effect_early_or_in_turn(early: bool) -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.early_abort, executor.delay_s = early, 0.02
        gone, stays = await gateway.submit(sequence([1], max_tokens=200), sequence([2], max_tokens=12, seed=5))
        await gateway.until(lambda: len(gateway.tokens[gone]) > 2)
        await gateway.abort(gone)
        await gateway.done(stays)
        assert gateway.tokens[stays] == expected_tokens([2], 5, 12)
        await idle(process)


async def test_preemption_while_plans_are_in_flight() -> None:
    """B065: blocks for about two of four sequences; each is preempted and resumed, and its text is the undisturbed one."""
    async with (
        ScriptedExecutor(num_blocks=10, max_model_len=160) as executor,
        house(executor) as process,
        RawGateway(address_of(process)) as gateway,
    ):
        executor.delay_s = 0.001
        prompts = [[seed] * 10 for seed in range(1, 5)]
        handles = await gateway.submit(*[sequence(p, max_tokens=70, seed=p[0]) for p in prompts])
        await gateway.done(*handles, timeout_s=30)
        for handle, prompt in zip(handles, prompts, strict=True):
            assert gateway.tokens[handle] == expected_tokens(prompt, prompt[0], 70)
        assert process.view().num_preemptions > 0
        await idle(process)


async def test_slots_are_reused_only_after_their_plans_returned() -> None:
    """Three times as many sequences as slots; the scripted executor complains about any slot that is taken twice."""
    async with (
        ScriptedExecutor(max_num_seqs=3) as executor,
        house(executor) as process,
        RawGateway(address_of(process)) as gateway,
    ):
        handles = await gateway.submit(*[sequence([i, i], max_tokens=1 + i % 5, seed=i + 1) for i in range(12)])
        await gateway.done(*handles)
        assert all(gateway.tokens[h] == expected_tokens([i, i], i + 1, 1 + i % 5) for i, h in enumerate(handles))
        assert max(new.slot for plan in executor.plans for new in plan.new_sequences) == 2
        await idle(process)


async def test_prefix_is_computed_once_and_reported() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        long = list(range(100, 150))
        (first,) = await gateway.submit(sequence(long, max_tokens=2, seed=1))
        await gateway.done(first)
        (again,) = await gateway.submit(sequence(long, max_tokens=2, seed=1))
        (other,) = await gateway.submit(sequence(long, max_tokens=2, seed=1, tenant="someone-else"))
        await gateway.done(again, other)
        assert gateway.cached == {first: 0, again: 48, other: 0}
        assert gateway.tokens[first] == gateway.tokens[again] == gateway.tokens[other]
        assert process.view().prefix_hits == 48


async def test_logprobs_reach_their_own_entry() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        plain, asked = await gateway.submit(sequence([1], max_tokens=5), sequence([2], max_tokens=5, logprobs=True))
        await gateway.done(plain, asked)
        assert gateway.logprobs == {asked: [-0.5] * 5}


async def test_two_gateways_get_their_own_rows_only() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process:
        address = address_of(process)
        async with RawGateway(address) as left, RawGateway(address) as right:
            executor.delay_s = 0.002
            (a,) = await left.submit(sequence([1], max_tokens=30, seed=1))
            b, c = await right.submit(sequence([2], max_tokens=30, seed=2), sequence([3], max_tokens=10, seed=3))
            await asyncio.gather(left.done(a), right.done(b, c))
            assert left.tokens == {a: expected_tokens([1], 1, 30)}
            assert right.tokens == {b: expected_tokens([2], 2, 30), c: expected_tokens([3], 3, 10)}
        await idle(process)


async def test_row_error_ends_that_row_alone() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        executor.fails = lambda resident: "boom" if resident.num_emitted == 4 and resident.num_prompt == 2 else ""
        bad, good = await gateway.submit(sequence([1, 2], max_tokens=20), sequence([3], max_tokens=20, seed=9))
        await gateway.done(bad, good)
        assert gateway.errors == {bad: ("internal", "boom")}
        assert gateway.finished[bad] == common_pb2.FINISH_REASON_ERROR
        assert gateway.tokens[good] == expected_tokens([3], 9, 20)
        await idle(process)


async def test_every_input_is_recorded_in_the_order_it_was_applied() -> None:
    async with ScriptedExecutor() as executor, house(executor) as process, RawGateway(address_of(process)) as gateway:
        (handle,) = await gateway.submit(sequence([1], max_tokens=3, seed=None))
        await gateway.done(handle)
        await idle(process)
        frames = process.recorder.frames
        assert process.recorder.kinds("HANDSHAKE", "ARRIVAL", "ABORT", "LOST") == ["HANDSHAKE", "ARRIVAL"]
        plans = [index for index, frame in enumerate(frames) if frame[0] == "PLAN"]
        assert all(frames[index - 1][:2] == ("TICK", frames[index][1]) for index in plans)
        assert len(plans) == len(executor.plans)
        assert [frame[2] for frame in frames if frame[0] == "PLAN"] == [plan.SerializeToString() for plan in executor.plans]
        arrival = next(frame for frame in frames if frame[0] == "ARRIVAL")
        assert executor.plans[0].new_sequences[0].sampling.HasField("seed")
        assert executor.plans[0].new_sequences[0].sampling.SerializeToString() in arrival[4]
