"""The policies by name."""

from scheduler_svc.core.bucketed import BucketedAdmission
from scheduler_svc.core.cadence import check_cadence
from scheduler_svc.core.paged import PagedAdmission
from scheduler_svc.core.policy import AdmissionPolicy
from scheduler_svc.core.ragged import RaggedAdmission
from scheduler_svc.core.types import Limits


def policy_for(limits: Limits) -> AdmissionPolicy:
    """The policy that the settings name. Raises ContradictingCadence when admission, layout and cadence cannot all be kept."""
    check_cadence(limits)
    if limits.admission == "bucketed":
        return BucketedAdmission(limits)
    if limits.admission == "ragged":
        return RaggedAdmission(limits)
    return PagedAdmission(limits)
