"""A frozen reading of the historical rule, written apart from the product code, down to the bytes of its plans.

It shares no line, type or helper with `scheduler_svc.core`; it knows the seam's proto and the rule's description, no more. Do not
"fix" it together with the product: where the two differ, one of them is wrong about the rule. Beside the historical rule it has the
five corrections of decision record 0008. One executor with enough memory, no prefix cache, one plan in flight.

    both queues empty           nothing
    only waiting                 admit up to the bound; the shortest bucket runs
    only running                 the shortest bucket runs
    both                         admit up to the bound; the bucket of highest priority runs, or the shortest when that soon pays
"""

import heapq

from drumline.plan.v1.plan_pb2 import StepPlan

NOTHING, IN, RESET = 1, 2, 3
PREFILL_LAST, DECODE = 2, 3


class OldSequence:
    """State as the historical scheduler named it: `prompt` until its prompt has run, then `completion`."""

    def __init__(self, number, prompt):
        self.number, self.tokens, self.num_prompt = number, list(prompt), len(prompt)
        self.state, self.skipped, self.slot, self.blocks, self.cache_len = "prompt", 0, None, [], None

    def length_component(self):
        return self.cache_len if self.cache_len is not None else len(self.tokens) - 1

    def bucket(self):
        images, token_offset = False, 0
        return (self.length_component(), images and self.state == "prompt", token_offset)


class FrozenScheduler:
    """`arrive`, `withdraw`, `schedule` -> plan or None, `answer`."""

    def __init__(self, *, bound, num_slots, num_blocks, block_size, layout, epoch, grant):
        self.bound, self.block_size, self.layout, self.epoch, self.grant = bound, block_size, layout, epoch, grant
        self.running, self.waiting, self.arrived = [], [], []
        self.slots, self.blocks = list(range(num_slots)), list(range(num_blocks))
        self.freed, self.aborted, self.returning = [], [], []
        self.step, self.cohort, self.last_rows, self.last_decoded = 0, 0, [], False
        self.last_completion_ids, self.prompts_to_come, self.flight = [], [], None

    # inputs

    def arrive(self, number, prompt):
        self.arrived.append(OldSequence(number, prompt))

    def withdraw(self, number):
        """A client is gone. Correction 2: it leaves at once, wherever it stands."""
        for queue in (self.running, self.waiting, self.arrived, self.prompts_to_come):
            for seq in [one for one in queue if one.number == number]:
                queue.remove(seq)
                if seq.slot is not None and seq.slot not in self.aborted:
                    self.aborted.append(seq.slot)
                    self._release(seq)

    # the step

    def schedule(self):
        completions, prompts = [], self.prompts_to_come
        self.prompts_to_come = []
        if not prompts:
            completions, prompts = self._decide()
        if completions:
            self.prompts_to_come, prompts = prompts, []
        return self._plan(completions, prompts)

    def _decide(self):
        held = [seq for seq in self.waiting if seq.slot is not None]
        fresh = sorted((seq for seq in (*self.waiting, *self.arrived) if seq.slot is None), key=lambda seq: seq.number)
        running = list(self.running)
        # Correction 1: the bound always holds. Who has memory keeps it; newcomers get what is left, in the order of arrival.
        room = self.bound - len(running) - len(held)
        entering, beyond = fresh[:room], fresh[room:]
        everybody = running + held + entering
        if not everybody:
            return [], []
        discrete = not running or not (held or fresh)
        buckets = {}
        for seq in everybody:
            buckets.setdefault(seq.bucket(), []).append(seq)
        winner = buckets[self._winner(buckets, discrete)]
        for seq in everybody:
            seq.skipped = 0 if seq in winner else seq.skipped + 1
        winner.sort(key=lambda seq: seq.number)
        self.running, self.arrived = winner, beyond
        self.waiting = [seq for seq in everybody if seq not in winner]
        return [s for s in winner if s.state == "completion"], [s for s in winner if s.state == "prompt"]

    def _winner(self, buckets, discrete):
        # Correction 4: equal priorities go to the smallest key.
        ordered = sorted(buckets)
        greedy = ordered[0]
        for key in ordered[1:]:
            if self._weight(buckets[key]) > self._weight(buckets[greedy]):
                greedy = key
        # Correction 5: a wait longer than the override may take ends it.
        if any(seq.skipped > 256 for bucket in buckets.values() for seq in bucket):
            return greedy
        smallest = ordered[0]
        if discrete or len(ordered) == 1:
            return smallest
        if greedy == smallest:
            return smallest
        longer = [key[0] for key in ordered if key[1:] == smallest[1:] and key[0] > smallest[0]]
        if not longer:
            return greedy
        gap = min(longer) - smallest[0]
        small, total = len(buckets[smallest]), sum(len(bucket) for bucket in buckets.values())
        return smallest if (total - small) * gap <= small * 256 else greedy

    def _weight(self, bucket):
        """2 ** (sum of skipped + log2(length)): priorities in exact numbers."""
        weight = 1
        for seq in bucket:
            weight *= 2**seq.skipped * len(seq.tokens)
        return weight

    # the seam

    def _plan(self, completions, prompts):
        rows = completions or prompts
        if not rows and not self.freed and not self.aborted:
            return None
        self.step += 1
        plan = StepPlan(step_id=self.step, session_epoch=self.epoch, grant_id=self.grant, based_on_result_step=self.step - 1)
        plan.layout, plan.advance, plan.cache_op = self.layout, 1, NOTHING
        plan.freed_slots.extend(self.freed)
        plan.aborted_slots.extend(self.aborted)
        self.returning, self.freed, self.aborted = self.freed + self.aborted, [], []
        for seq in prompts:
            seq.slot = heapq.heappop(self.slots)
            plan.new_sequences.add(slot=seq.slot, token_ids=seq.tokens, num_prompt_tokens=seq.num_prompt)
        for index, seq in enumerate(rows):
            covered = len(seq.tokens)
            while len(seq.blocks) * self.block_size < covered:
                seq.blocks.append(self.blocks.pop(0))
                plan.block_row.append(index)
                plan.block_id.append(seq.blocks[-1])
        if rows:
            self._rows(plan, rows, decoding=bool(completions))
        plan.cohort_id = self.cohort
        self.flight = (rows, bool(completions))
        return plan

    def _rows(self, plan, rows, *, decoding):
        numbers = [seq.number for seq in rows]
        same = numbers == self.last_rows
        self.cohort += not same
        if same and decoding and self.last_decoded:
            plan.repeat_rows = True
        else:
            plan.slot.extend(seq.slot for seq in rows)
            plan.row_kind.extend([DECODE if decoding else PREFILL_LAST] * len(rows))
            plan.num_tokens.extend([1 if decoding else len(seq.tokens) for seq in rows])
            plan.start.extend([0] * len(rows))
        self.last_rows, self.last_decoded = numbers, decoding
        if self.layout != 1:
            plan.cache_op = (NOTHING if numbers == self.last_completion_ids else IN) if decoding else RESET
        self.last_completion_ids = numbers if decoding else []

    def answer(self, tokens, lengths, finished):
        """What the flying plan did, per row."""
        rows, _ = self.flight
        self.flight = None
        for row, seq in enumerate(rows):
            seq.tokens.append(tokens[row])
            seq.cache_len, seq.state = lengths[row], "completion"
            if row in finished:
                self.freed.append(seq.slot)
                self._release(seq)
                for queue in (self.running, self.waiting):
                    if seq in queue:
                        queue.remove(seq)
        for slot in self.returning:
            heapq.heappush(self.slots, slot)
        self.returning = []

    def _release(self, seq):
        self.blocks.extend(reversed(seq.blocks))
        seq.blocks = []
