"""The loop: requests in, tokens out, every live sequence one step further in each pass."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from bisect import insort
from collections.abc import Callable, Collection
from collections.abc import Sequence as Ids
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ._batch import Batch
from ._scheduler import Scheduler
from ._sequence import Sequence
from .admission import MIN_GAIN, Admission, Admitted
from .arguments import is_number, misfit
from .errors import MtlqError, OutOfMemory, RequestError
from .kv_memory import KVMemory
from .request import Output, Request, checked_params, checked_prompt
from .sampling import SamplingParams, checked_ids
from .speculation import Proposer, Speculation
from .stats import Stats, StepClock

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ["Engine", "Output", "Request"]

log = logging.getLogger(__name__)


class Engine:
    """Runs up to `runner.max_slots` requests at a time; the rest waits in order of arrival.

    kv_memory_bytes, prefix_memory_bytes, prefix_cache_dir: budgets and directory of `KVMemory`.
    prefix_chunk_tokens: prompts leave prefix entries at multiples of it, beside their checkpoints.
    policy: share of a pass, beside the rows of generating sequences, that prompts may use: 1 for
        the shortest time to the first token, towards 0 for generation that prompts do not slow
        down.
    drafts: where guesses of the tokens to come are from, for passes to verify; draft_width: how
        many per pass and sequence; None: as many as pay.

    `submit` and `cancel` may be called from any thread. Either `start` the thread that steps, or
    `step`.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        kv_memory_bytes: int | None = None,
        prefix_memory_bytes: int | None = None,
        prefix_cache_dir: str | Path | None = None,
        prefix_chunk_tokens: int = 512,
        policy: float = 1.0,
        drafts: Proposer | None = None,
        draft_width: int | None = None,
    ):
        if not is_number(policy, 0.0, 1.0):
            raise MtlqError(misfit("policy", policy, "a number from 0 to 1"))
        self.runner = runner
        self.memory = KVMemory(
            runner,
            kv_memory_bytes=kv_memory_bytes,
            prefix_memory_bytes=prefix_memory_bytes,
            prefix_cache_dir=prefix_cache_dir,
            prefix_chunk_tokens=prefix_chunk_tokens,
        )
        self.admission = Admission(self.memory)
        self.scheduler = Scheduler(runner.pass_tokens, runner.max_slots, policy)
        self.batch = Batch(runner.batch, runner.drafting)
        self.speculation: Speculation | None = None
        if drafts is not None:
            self.speculation = Speculation(
                drafts, runner.pass_tokens, runner.max_context, draft_width
            )
        self.live: list[Sequence] = []  # in order of arrival
        self._free_slots = list(range(runner.max_slots))  # a heap: the lowest first
        self._outputs: list[tuple[Request, Output]] = []
        self._inbox: SimpleQueue[tuple[Callable[[Request], None], Request] | None] = SimpleQueue()
        self._numbers = itertools.count()
        self._gate = threading.Lock()  # no request enters an engine that has ended
        self._failure: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._stats = Stats(bundles_max=self.memory.pool.max_bundles)
        self._clock = StepClock(self._stats.step_ns)

    # ---- any thread ----------------------------------------------------------------------------

    def submit(
        self,
        ids: Ids[int] | npt.NDArray[np.int32],
        params: SamplingParams,
        *,
        checkpoints: Collection[int] = (),
        stop_ids: Collection[int] = frozenset(),
        on_output: Callable[[Output], None],
    ) -> Request:
        """Queues a prompt. `on_output` is called on the engine's thread and must return at once.

        checkpoints: numbers of leading tokens worth a prefix entry: ends of turns.
        stop_ids: tokens that end the answer unless params.ignore_eos; they are not delivered.
        Raises RequestError, with code "context_length_exceeded" for a prompt that can never fit.
        """
        num_tokens = self.runner.config.num_tokens
        prompt = checked_prompt(ids, checkpoints, num_tokens)
        params = checked_params(params)
        if not callable(on_output):
            raise RequestError(misfit("on_output", on_output, "a function"), param="on_output")
        most = self._room_to_generate(len(prompt))
        request = Request(
            prompt,
            next(self._numbers),
            params,
            num_left=most if params.max_tokens is None else min(params.max_tokens, most),
            num_tokens=num_tokens,
            checkpoints=checkpoints,
            stop_ids=checked_ids("stop_ids", stop_ids),
            on_output=on_output,
        )
        with self._gate:
            if not self.alive:
                raise MtlqError(f"the engine has ended: {self._failure or 'it was closed'}")
            self._inbox.put((self._enter, request))
        return request

    def cancel(self, request: Request) -> None:
        """Ends a request before the next pass; no effect on one that has ended."""
        if not isinstance(request, Request):
            raise RequestError(misfit("request", request, "what submit returned"), param="request")
        self._inbox.put((self._drop, request))

    @property
    def alive(self) -> bool:
        """Whether requests are taken: False after `close` and after a failure of the device."""
        return self._failure is None and not self._closed

    @property
    def max_context(self) -> int:
        """Most tokens of one request, prompt and answer: as a slot and the K/V memory have room."""
        return self.memory.max_context

    @property
    def stats(self) -> Stats:
        """The engine's counters; this call brings the gauges up to date."""
        stats, memory = self._stats, self.memory
        stats.running, stats.waiting = len(self.live), len(self.admission.waiting)
        stats.prefix_entries, stats.prefix_bytes = len(memory.prefix), memory.prefix.num_bytes
        stats.prefix_evictions = memory.prefix.num_evictions
        stats.bundles_committed = memory.pool.num_bundles
        stats.bundles_bound = memory.pool.num_bound
        stats.bundles_cached = memory.pool.num_held - memory.pool.num_bound
        stats.heap_chunks = memory.pool.num_chunks
        stats.mappings = memory.map.num_runs * self.runner.num_tiles
        return stats

    def _room_to_generate(self, num_prompt: int) -> int:
        """Tokens that can follow a prompt of that length: at least one, or RequestError."""
        room = self.memory.max_context - num_prompt
        if room > 0:
            return room
        limit = f"the context of {self.memory.max_context} tokens"
        if self.memory.max_context < self.runner.max_context:
            blocks = f"{self.memory.pool.max_bundles} blocks of {self.runner.block_tokens} tokens"
            limit = f"the K/V memory of {blocks}"
        raise RequestError(
            f"the prompt has {num_prompt} tokens, which with one to generate exceeds {limit}: "
            f"at most {self.memory.max_context - 1} fit; shorten the prompt or raise the limit",
            param="prompt",
            code="context_length_exceeded",
        )

    # ---- the step ------------------------------------------------------------------------------

    def step(self) -> bool:
        """Advances every live sequence; False if there was nothing to do. Not while a thread steps.

        An exception ends the engine: every request gets it, and it is raised here.
        """
        clock = self._clock
        clock.start()
        try:
            self._receive()
            self._admit()
            clock.lap("admit")
            if self.speculation is not None:
                self.speculation.draft(self.live)
            clock.lap("draft")
            self.scheduler.schedule(self.live)
            clock.lap("schedule")
            self._reserve()
            clock.lap("reserve")
            if not self.live:
                return self._settle()
            self.batch.pack(self.live)
            clock.lap("pack")
            self._run()
            clock.lap("run")
            self._commit()
            clock.lap("commit")
            self._deliver()
            clock.lap("deliver")
            self._retire()
            clock.lap("retire")
        except BaseException as error:
            self._fail(error)
            raise
        return True

    def _receive(self) -> None:
        """Does what other threads asked for since the last step."""
        while not self._inbox.empty():
            self._handle(self._inbox.get())

    def _handle(self, message: tuple[Callable[[Request], None], Request] | None) -> None:
        if message is not None:  # None only wakes the thread
            action, request = message
            action(request)

    def _enter(self, request: Request) -> None:
        self._stats.submitted += 1
        self.admission.add(request.sequence)

    def _drop(self, request: Request) -> None:
        if request.finish_reason is None:
            self._finish(request, "cancelled")
            self._leave(request.sequence)

    def _admit(self) -> None:
        """Fills free slots from the queue."""
        while self._free_slots and self.admission.waiting:
            admitted = self.admission.take(self.live)
            if admitted is None:
                break
            self._start(admitted)

    def _start(self, admitted: Admitted) -> None:
        """Gives a request a slot, restored from its prefix entry, and sets its checkpoints."""
        sequence = admitted.sequence
        request: Request = sequence.request
        self.memory.start(sequence, heapq.heappop(self._free_slots), admitted.entry)
        insort(self.live, sequence, key=lambda live: live.number)
        request.num_published = restored = sequence.kv_valid
        sequence.set_checkpoints(self.admission.checkpoints(admitted))
        if request.cached_tokens is None:
            request.cached_tokens = restored
            self._stats.prompt_tokens += sequence.num_tokens
            self._stats.cached_tokens += restored
            self._stats.prefix_hits += restored > 0
            self._stats.prefix_misses += restored == 0

    def _reserve(self) -> None:
        """Binds the blocks of this step, oldest first; where memory ends, the youngest leaves."""
        for sequence in list(self.live):
            while sequence.active and not self.memory.reserve(sequence):
                if sequence.n_draft:
                    sequence.drop_drafts()
                elif len(self.live) > 1:
                    self._preempt(self.live[-1])
                else:
                    self._give_up(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue with its tokens; what was computed will be computed again."""
        self._leave(sequence)
        self.admission.add(sequence)
        self._stats.preemptions += 1

    def _give_up(self, sequence: Sequence) -> None:
        """Ends a request that gets no memory although it is alone: the device has less than the
        budget.
        """
        error = OutOfMemory(
            f"the device has no memory for the K/V of {sequence.num_tokens} tokens; "
            "lower the context or free memory"
        )
        self._finish(sequence.request, "error", error=error)
        self._leave(sequence)

    def _run(self) -> None:
        """The pass: one submission with the map operations that it needs."""
        self.runner.run(self.memory.map.take_ops())
        self.memory.settle()
        self._stats.steps += 1
        self._stats.computed_tokens += self.batch.num_rows
        self._stats.device_ns += self.runner.device_ns

    def _commit(self) -> None:
        """Counts the rows as computed and appends the tokens that their logits choose."""
        greedy = self.runner.argmax[: self.batch.num_logit_rows].tolist()
        for sequence in self.live:
            if sequence.logit_row < 0:
                sequence.advance()
            else:
                self._extend(sequence, greedy)
        batch = self.batch
        if self.speculation is not None and batch.num_rows == batch.num_logit_rows:
            num_injected, ns = batch.num_injected, self.runner.device_ns
            self.speculation.measured(len(self.live), batch.num_rows, num_injected, ns)
        batch.keep_features()

    def _extend(self, sequence: Sequence, greedy: list[int]) -> None:
        """Appends what this pass brought a sequence that generates, and counts drafts that were
        right as computed.
        """
        request: Request = sequence.request
        drafts = self.batch.drafts(sequence)
        rows = slice(sequence.logit_row, sequence.logit_row + 1 + len(drafts))
        answer = request.answer(self.runner.logits[rows], greedy[rows], drafts)
        sequence.advance(answer.num_accepted)
        for token in answer.tokens:
            sequence.append(token)
        self._stats.generated_tokens += len(answer.tokens)
        self._stats.generating_rows += 1
        if drafts and self.speculation is not None:
            self._stats.verified(len(drafts), answer.num_accepted)
            self.speculation.verified(sequence, len(drafts), answer.num_accepted)
        logprobs = answer.logprobs or None
        reason, error, cached = answer.finish_reason, answer.error, request.cached_tokens or 0
        self._send(request, Output(answer.tokens, reason, error, cached, logprobs))

    def _finish(self, request: Request, reason: str, *, error: Exception | None = None) -> None:
        self._send(request, Output([], reason, error, request.cached_tokens or 0))

    def _send(self, request: Request, output: Output) -> None:
        if output.finish_reason is not None:
            request.finish_reason = output.finish_reason
            self._stats.finished[output.finish_reason] += 1
        self._outputs.append((request, output))

    def _deliver(self) -> None:
        """Hands the outputs of this step over."""
        outputs, self._outputs = self._outputs, []
        for request, output in outputs:
            try:
                request.on_output(output)
            except Exception:
                log.exception("on_output failed; its request is cancelled")
                self.cancel(request)

    def _retire(self) -> None:
        """Publishes what has reached a checkpoint or its end, and frees the slots of what has
        ended.
        """
        self._complete([s for s in self.live if s.at_checkpoint or _leaves_entry(s)])
        for sequence in list(self.live):
            request: Request = sequence.request
            if sequence.at_checkpoint:
                self._publish(sequence, durable=sequence.kv_valid in request.checkpoints)
                sequence.pass_checkpoint()
            if request.finish_reason is None:
                continue
            if _leaves_entry(sequence):
                self._publish(sequence, durable=True)
            self._leave(sequence)

    def _complete(self, sequences: list[Sequence]) -> None:
        """Before entries copy: replays drafts up to kv_valid, by a pass without rows, and has the
        drafter's context brought that far.
        """
        if not sequences or not self.memory.prefix.is_enabled:
            return
        behind = [sequence for sequence in sequences if sequence.replay]
        features = self.batch.features
        if not behind and (features is None or not features.num_rows):
            return
        self.batch.pack(behind, inject=True)
        self.runner.run()
        self.batch.keep_features()
        self._stats.device_ns += self.runner.device_ns
        for sequence in behind:
            sequence.flush()

    def _publish(self, sequence: Sequence, *, durable: bool) -> None:
        self.memory.publish(sequence, durable=durable)
        sequence.request.num_published = sequence.kv_valid

    def _leave(self, sequence: Sequence) -> None:
        """Takes a sequence out of its slot, or out of the queue."""
        if not sequence.active:
            self.admission.remove(sequence)
            return
        if self.batch.features is not None:
            self.batch.features.drop(sequence.slot)
        heapq.heappush(self._free_slots, sequence.slot)
        self.live.remove(sequence)
        self.memory.stop(sequence)

    def _settle(self) -> bool:
        """Ends a step in which nothing ran; whether it had anything to tell."""
        spoke = bool(self._outputs)
        self._deliver()
        self.memory.flush()
        return spoke

    # ---- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread that steps while there is work."""
        if self._thread is None and self.alive:
            self._thread = threading.Thread(target=self._loop, name="mtlqwen-engine", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        try:
            while not self._closed:
                # The disk waits until no request does.
                if self.step() or self.memory.save_one():
                    continue
                if not self._closed:  # the message that wakes may have been received already
                    self._handle(self._inbox.get())
        except BaseException as error:
            log.exception("the engine has failed")
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Ends the engine: every request that is here or on its way gets the error."""
        with self._gate:
            if self._failure is not None:
                return
            self._failure = error
        cause = error if isinstance(error, Exception) else MtlqError(f"the engine ended: {error!r}")
        self._receive()
        for sequence in [*self.live, *self.admission.waiting]:
            if sequence.request.finish_reason is None:
                self._finish(sequence.request, "error", error=cause)
        self._deliver()

    def close(self) -> None:
        """Cancels what still runs, saves prefix entries to their directory, gives all memory back.

        May be called twice.
        """
        with self._gate:
            if self._closed:
                return
            self._closed = True
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            return
        self._receive()
        for sequence in [*self.live, *self.admission.waiting]:
            self._drop(sequence.request)
        self._deliver()
        self.memory.close()

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _leaves_entry(sequence: Sequence) -> bool:
    """Whether a request has ended with more computed than its prefix entries hold."""
    request: Request = sequence.request
    gain: int = sequence.kv_valid - request.num_published
    return request.finish_reason not in (None, "error") and gain >= MIN_GAIN
