"""The ragged rule: where an executor's grant allows it, all completions form one bucket, whatever their lengths.

Prompts stay bucketed: a batch of prompts is dense, [rows, tokens], and that is another raggedness. On an executor whose declaration
was a refusal everything is as in `bucketed`, plan for plan.
"""

from scheduler_svc.core.bucketed import BucketedAdmission


class RaggedAdmission(BucketedAdmission):
    """The bucketed rule under the executors' own grants, see `grant_for`; the key function does the rest."""

    name = "ragged"
