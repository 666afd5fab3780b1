"""Declaration, grant and latch of the executor (B5, B6, B8, B12, B13, C7, C10, C11, D2-D6 without drafts)."""

import itertools
import logging

import pytest

from executor_svc.backends.fake_pipeline import FakeSlot, fake_pipeline
from executor_svc.config import ExecutorSettings
from executor_svc.layouts.normal import NormalSlot
from executor_svc.layouts.rolling import RollingSlot
from executor_svc.layouts.xs_rolling import XsRollingSlot
from executor_svc.ragged import DrafterFacts, KvAdvance, ModelFacts, MtpPipeline, PlainPipeline, RaggedPipeline, RaggedSwitches

ON = RaggedSwitches(mtp_per_seq_kv=True, v4_xs_per_seq=True)
NORMAL = FakeSlot("normal", supports_per_sequence_len=True)
GOOD_DRAFTER = DrafterFacts("head", carries_per_sequence_positions=True)


def model(*slots, masks: bool = True) -> ModelFacts:
    return ModelFacts("m", slots=slots or (NORMAL, NORMAL), masks_ragged_batches=masks)


def mtp(*, of: ModelFacts | None = None, drafter: DrafterFacts = GOOD_DRAFTER, switches: RaggedSwitches = ON) -> MtpPipeline:
    return MtpPipeline("mtp", model=of or model(), drafter=drafter, switches=switches)


def v4_like(*, switch: bool) -> ModelFacts:
    """Two normal slots, then xs_rolling ones, as DeepSeek V4's cache has them: it can mask, whatever the switch says."""
    xs = XsRollingSlot(lambda rows: rows.mean(0), width=4, compressed_width=4, ratio=4, per_sequence=switch)
    return ModelFacts("v4", slots=(NormalSlot(), NormalSlot(), xs, xs), masks_ragged_batches=True)


def test_the_default_declaration_is_a_refusal_that_names_itself():
    declared = RaggedPipeline("brand-new").ragged_batch_admission()
    assert not declared.granted
    assert "'brand-new'" in declared.reason


def test_a_pipeline_that_says_nothing_never_moves_rows_apart():
    pipeline = RaggedPipeline("brand-new")
    pipeline.set_ragged_batch_admission(granted=True)
    assert pipeline.kv_advance() is KvAdvance.COHORT


def test_plain_decoding_declares_itself_without_any_switch():
    pipeline = PlainPipeline("cpu", model=model())
    assert pipeline.ragged_batch_admission().granted
    refused = PlainPipeline("cpu", model=model(), refused="refused by the setting `ragged`").ragged_batch_admission()
    assert (refused.granted, refused.reason) == (False, "refused by the setting `ragged`")


@pytest.mark.parametrize("granted", [True, False])
def test_plain_rows_move_as_granted(granted):
    pipeline = PlainPipeline("cpu", model=model())
    pipeline.set_ragged_batch_admission(granted=granted)
    assert pipeline.kv_advance() is (KvAdvance.PER_SEQUENCE if granted else KvAdvance.COHORT)


def test_c10_the_declaration_still_refuses_every_model_that_cannot_mask_a_ragged_batch():
    for pipeline in (mtp(of=model(masks=False)), PlainPipeline("cpu", model=model(masks=False))):
        declared = pipeline.ragged_batch_admission()
        assert not declared.granted
        assert "does not mask the dead prefix" in declared.reason


@pytest.mark.parametrize("make", [mtp, lambda of: PlainPipeline("cpu", model=of)])
def test_c11_the_first_slot_that_cannot_is_named(make):
    rolling = RollingSlot(num_kv_heads=1, head_dim=4, window=8)
    declared = make(of=model(NormalSlot(), rolling, rolling)).ragged_batch_admission()
    assert not declared.granted
    assert "cache slot 1 is of kind rolling" in declared.reason


def test_c11_v4_with_its_switch_off_is_refused_by_its_cache_though_it_could_mask():
    """The cache check stands by itself: with the switch off nothing else refuses a V4-like model."""
    declared = mtp(of=v4_like(switch=False)).ragged_batch_admission()
    assert not declared.granted
    assert "cache slot 2 is of kind xs_rolling" in declared.reason
    assert "ARC_V4_XS_PER_SEQ" in declared.reason
    assert mtp(of=v4_like(switch=True)).ragged_batch_admission().granted


def test_d4_a_drafter_with_one_position_for_all_rows_is_refused():
    declared = mtp(drafter=DrafterFacts("old", carries_per_sequence_positions=False)).ragged_batch_admission()
    assert not declared.granted
    assert "drafter old" in declared.reason


def test_d4_without_its_switch_a_drafting_pipeline_declares_nothing_and_says_what_would_be_gained():
    declared = mtp(switches=RaggedSwitches()).ragged_batch_admission()
    assert not declared.granted
    assert "ARC_MTP_PER_SEQ_KV" in declared.reason
    assert "gains nothing" in declared.reason


@pytest.mark.parametrize("granted", [True, False])
def test_d5_the_declaration_does_not_depend_on_the_grant(granted):
    """It is asked before anything is granted; were it made of the four checks, nothing would ever be declared."""
    pipeline = mtp()
    pipeline.set_ragged_batch_admission(granted=granted)
    assert pipeline.ragged_batch_admission().granted
    assert bool(pipeline.per_sequence_refusal()) is not granted


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        (mtp(of=v4_like(switch=False)), "xs_rolling"),
        (mtp(of=model(masks=False)), "does not mask"),
        (mtp(drafter=DrafterFacts("old", carries_per_sequence_positions=False)), "drafter old"),
    ],
)
def test_d5_each_of_the_other_three_checks_refuses_in_spite_of_a_grant(pipeline, words, caplog):
    pipeline.set_ragged_batch_admission(granted=True)
    assert words in pipeline.per_sequence_refusal()
    with caplog.at_level(logging.WARNING):
        assert pipeline.kv_advance() is KvAdvance.COHORT
    assert "cannot honour it" in caplog.text
    assert words in caplog.text
    pipeline.begin_session()


def test_d3_the_fourth_check_passes_exactly_when_granted():
    pipeline = mtp()
    assert "did not admit" in pipeline.batch_admission_refusal()
    assert pipeline.per_sequence_refusal() == pipeline.batch_admission_refusal()
    pipeline.set_ragged_batch_admission(granted=True)
    assert pipeline.batch_admission_refusal() == pipeline.per_sequence_refusal() == ""


def test_d2_rows_move_by_themselves_once_granted_and_it_is_settled_once(caplog):
    pipeline = mtp()
    pipeline.set_ragged_batch_admission(granted=True)
    with caplog.at_level(logging.INFO):
        assert [pipeline.kv_advance() for _ in range(3)] == [KvAdvance.PER_SEQUENCE] * 3
    assert caplog.text.count("per-sequence KV advance is ON") == 1


def test_b8_a_grant_after_the_first_step_is_a_warning_and_has_no_effect(caplog):
    pipeline = mtp()
    assert pipeline.kv_advance() is KvAdvance.COHORT
    with caplog.at_level(logging.WARNING):
        pipeline.set_ragged_batch_admission(granted=True)
    assert "after the first step and has no effect" in caplog.text
    assert pipeline.kv_advance() is KvAdvance.COHORT
    assert not pipeline.granted


def test_a_new_session_starts_with_nothing_granted():
    pipeline = mtp()
    pipeline.set_ragged_batch_admission(granted=True)
    assert pipeline.kv_advance() is KvAdvance.PER_SEQUENCE
    pipeline.begin_session()
    assert pipeline.kv_advance() is KvAdvance.COHORT


def test_a_switch_that_is_off_is_never_complained_about(caplog):
    pipeline = mtp(switches=RaggedSwitches())
    pipeline.set_ragged_batch_admission(granted=True)
    with caplog.at_level(logging.DEBUG):
        assert pipeline.kv_advance() is KvAdvance.COHORT
    assert "cannot honour" not in caplog.text


def test_b12_the_two_switches_and_no_other_decide():
    """The whole matrix, pipelines by switches: off unless told, and each only where it belongs."""
    told = ExecutorSettings()
    assert (told.mtp_per_seq_kv, told.v4_xs_per_seq) == (False, False)
    granted = {
        (drafter, kv, xs): fake_pipeline(drafter, refused=False, switches=RaggedSwitches(kv, xs)).ragged_batch_admission().granted
        for drafter, kv, xs in itertools.product(("none", "mtp", "v4"), (False, True), (False, True))
    }
    assert {case for case, ok in granted.items() if ok} == {
        *(("none", kv, xs) for kv in (False, True) for xs in (False, True)),
        ("mtp", True, False),
        ("mtp", True, True),
        ("v4", True, True),
    }


@pytest.mark.parametrize(("value", "on"), [("1", True), ("true", True), ("0", False), ("false", False)])
def test_b12_switches_are_read_as_the_request_spells_them(value, on):
    assert ExecutorSettings(mtp_per_seq_kv=value).mtp_per_seq_kv is on
