"""Drafts change how many passes an answer takes, and nothing else."""

import itertools
import operator

import numpy as np
import pytest
from engine_harness import Harness, OracleDrafts, drafting_harness, often, random_ids

from mtlqwen._cost_curve import CostCurve
from mtlqwen._sequence import Sequence
from mtlqwen.speculation import MAX_DRAFTS, Acceptance, PromptLookup, Speculation


@pytest.mark.parametrize("width", range(MAX_DRAFTS + 1))
@pytest.mark.parametrize("is_right", [often(1), often(2), often(5), lambda position: True])
def test_any_width_gives_the_tokens_of_plain_decoding(width, is_right):
    h = drafting_harness(OracleDrafts(is_right), width)
    h.run(random_ids(1, 20), 40)
    h.close()


@pytest.mark.parametrize("width", [1, 4, 15])
def test_right_drafts_save_passes(width):
    h = drafting_harness(OracleDrafts(), width)
    h.run(random_ids(1, 20), 1 + 6 * (width + 1))
    assert h.runner.num_runs == 1 + 6 + 1  # the prompt, six passes, one that replays for the entry
    stats = h.engine.stats
    assert h.runner.drafting.num_injections == 6 + 1
    assert stats.accepted == stats.drafted == [6] * width + [0] * (MAX_DRAFTS - width)
    assert stats.tokens_per_pass == pytest.approx((1 + 6 * (width + 1)) / 7)


@pytest.mark.parametrize("width", [0, 4])
def test_the_token_that_ends_an_answer_counts_in_tokens_per_pass(width):
    h = drafting_harness(OracleDrafts(lambda position: False), width)
    plain = h.oracle.generate(random_ids(3, 12), 3)
    h.run(random_ids(3, 12), 60, stop_ids={plain[-1]})
    assert h.engine.stats.generated_tokens == 2
    assert h.engine.stats.tokens_per_pass == 1


@pytest.mark.parametrize("rejected", range(1, MAX_DRAFTS + 1))
def test_a_rejection_at_any_position_leaves_nothing_behind(rejected):
    prompt = random_ids(2, 17)
    first = len(prompt) + 1  # position of the first draft
    h = drafting_harness(
        OracleDrafts(lambda position: position != first + rejected - 1), MAX_DRAFTS
    )
    h.run(prompt, 40)
    assert h.engine.stats.accepted[rejected - 1] < h.engine.stats.drafted[rejected - 1]
    h.close()


@pytest.mark.parametrize("width", [1, 4, 7, 15])
@pytest.mark.parametrize("count", range(1, 21))
def test_limits_and_stop_tokens_inside_a_run_of_right_drafts_end_it_there(width, count):
    """Case A20."""
    prompt = random_ids(3, 12)
    h = drafting_harness(OracleDrafts(), width)
    assert len(h.run(prompt, count).tokens) == count
    plain = h.oracle.generate(prompt, 60)
    h.run(prompt, 60, stop_ids={plain[count - 1]})
    h.run(prompt, 60, stop_ids={plain[count - 1]}, ignore_eos=True)
    h.close()


def test_the_last_position_of_the_context_is_reached_and_not_passed():
    h = drafting_harness(OracleDrafts(), 15, runner={"max_context": 64})
    client = h.run(random_ids(4, 30), 500)
    assert len(client.tokens) == 34 and client.finish_reason == "length"


@pytest.mark.parametrize("length", range(40, 64))
def test_no_block_of_a_drafter_leaves_the_context(length):
    """The runner faults where a block writes beyond the positions that are bound."""
    h = drafting_harness(OracleDrafts(), 3, runner={"max_context": 64})
    prompt = random_ids(4, length)
    client = h.run(prompt, 500)
    assert len(client.tokens) == 64 - len(prompt)
    h.close()


def test_with_and_without_drafts_long_and_short_prompts_share_passes():
    for width in (0, 2, 15):
        h = drafting_harness(
            OracleDrafts(often(3)), width, runner={"max_slots": 4, "pass_tokens": 16}
        )
        clients = [h.submit(random_ids(10 + i, 1 + 9 * i), 12) for i in range(7)]
        h.drain()
        for client in clients:
            h.check_tokens(client)
        h.close()


def test_drafts_take_only_the_rows_that_prompts_leave():
    h = drafting_harness(
        OracleDrafts(), 15, runner={"max_slots": 2, "pass_tokens": 16, "max_context": 512}
    )
    first = h.submit(random_ids(1, 3), 60)
    h.step(3)
    h.submit(random_ids(2, 300), 4)
    drafted = sum(h.engine.stats.drafted)
    h.step(15)
    assert sum(h.engine.stats.drafted) == drafted
    h.drain()
    h.check_tokens(first)


@pytest.mark.parametrize("width", [3, 15])
def test_an_entry_left_after_accepted_drafts_restores_what_a_cold_run_computes(width):
    prompt = random_ids(5, 20)
    h = drafting_harness(OracleDrafts(often(4)), width)
    first = h.run(prompt, 41)
    longer = [*prompt, *first.tokens, *random_ids(6, 5)]
    second = h.run(longer, 30)
    assert second.cached_tokens == len(prompt) + 40
    h.close()


def test_a_prompt_that_waits_for_a_running_answer_gets_its_entry_where_it_asked():
    prompt = random_ids(7, 30)
    h = drafting_harness(OracleDrafts(often(3)), 15)
    first = h.submit(prompt, 60)
    h.step(4)
    second = h.submit([*prompt, *first.tokens, *random_ids(8, 20)], 20)
    h.drain()
    h.check_tokens(first)
    h.check_tokens(second)
    assert second.cached_tokens >= len(prompt)
    h.close()


def test_preempted_sequences_give_the_same_tokens():
    h = drafting_harness(OracleDrafts(often(4)), 7, bundles=9, snapshots=0)
    clients = [h.submit(random_ids(20 + i, 20), 60) for i in range(4)]
    h.drain()
    assert h.engine.stats.preemptions > 0
    for client in clients:
        h.check_tokens(client)
    h.close()


def test_memory_for_drafts_is_given_up_before_a_sequence_is():
    h = drafting_harness(OracleDrafts(), 15, bundles=4, snapshots=0, runner={"max_context": 64})
    clients = [h.submit(random_ids(i, 20), 12) for i in range(2)]  # 32 positions each, no more
    h.drain()
    assert h.engine.stats.preemptions == 0
    for client in clients:
        h.check_tokens(client)


@pytest.mark.parametrize("width", [1, 6, 15])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 12, "top_p": 0.9},
        {"temperature": 1.2, "min_p": 0.05, "repetition_penalty": 1.3},
        {"temperature": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.4},
        {"presence_penalty": 2.0},
    ],
)
def test_a_seed_gives_the_same_answer_with_and_without_drafts(params, width):
    prompt = random_ids(9, 15)
    plain, drafted = Harness(), drafting_harness(OracleDrafts(often(2)), width)
    for h in (plain, drafted):
        h.submit(prompt, 40, seed=5, **params)
        h.drain()
    assert drafted.clients[0].tokens == plain.clients[0].tokens
    assert len(drafted.clients[0].tokens) == 40


def test_log_probabilities_come_with_every_token():
    prompt = random_ids(9, 15)
    plain, drafted = Harness(), drafting_harness(OracleDrafts(often(3)), 7)
    for h in (plain, drafted):
        h.submit(prompt, 20, logprobs=3)
        h.drain()
    results = [
        [entry for output in h.clients[0].outputs for entry in output.logprobs or []]
        for h in (plain, drafted)
    ]
    assert len(results[0]) == 20 and results[0] == results[1]


def test_sequences_that_do_not_generate_leave_the_rows_to_those_that_do():
    speculation = Speculation(Coins(), 16, 1 << 20, 15)
    live = [sequence(range(10), computed) for computed in (8, 9, 8, 9)]  # two end their prompts
    for s in live:
        s.request = Asked()
    speculation.draft(live)
    assert [s.n_draft for s in live] == [0, 5, 0, 5]  # of the 10 rows that 6 pending tokens leave


# ---- prompt lookup -----------------------------------------------------------------------------


def sequence(ids, computed=None):
    s = Sequence(np.array(ids, np.int32), 0)
    s.start(0)
    s.restore(len(ids) - 1 if computed is None else computed)
    return s


def test_lookup_continues_the_longest_match_and_of_equals_the_latest():
    assert sequence([1, 2, 3, 4, 5, 9, 1, 2, 3]).lookup(2).tolist() == [4, 5]
    assert sequence([1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3]).lookup(1).tolist() == [5]
    assert sequence([7, 1, 2, 3, 4, 0, 1, 2, 3, 5, 7, 1, 2, 3]).lookup(1).tolist() == [4]


def test_lookup_stops_at_the_end_and_wants_three_tokens_that_match():
    assert sequence([5, 5, 5, 5, 5]).lookup(8).tolist() == [5]
    assert sequence([1, 2, 9, 1, 2]).lookup(8).tolist() == []
    assert sequence([1]).lookup(8).tolist() == []


def test_lookup_equals_a_search_by_hand():
    rng = np.random.default_rng(0)
    for _ in range(300):
        ids = rng.integers(0, 2 + rng.integers(3), rng.integers(1, 60)).tolist()
        best, place = 2, 0
        for end in range(len(ids) - 2, -1, -1):
            length = 0
            while length <= end and length < 16 and ids[end - length] == ids[-1 - length]:
                length += 1
            if length > best:
                best, place = length, end + 1
        assert sequence(ids).lookup(5).tolist() == (ids[place : place + 5] if place else [])


def test_lookup_in_the_engine_changes_no_token():
    h = Harness(drafts=PromptLookup(), draft_width=6, runner={"num_tokens": 3})
    h.run([0, 1, 2] * 8, 60)
    assert sum(h.engine.stats.accepted) > 0
    h.close()


# ---- the choice of the width -------------------------------------------------------------------


class Asked:
    """What Speculation sees of a request."""

    def __init__(self, num_left=100):
        self.acceptance, self.num_left = Acceptance(), num_left


class Coins:
    """Drafts that are right at a rate, which may depend on the position."""

    max_drafts, block_rows, likelihood = MAX_DRAFTS, 0, (0.7, 0.7)

    def propose(self, sequence, count):
        return np.zeros(count, np.int32)


def simulate(rate_at, ns_of_rows, num_tokens):
    """Time per token over that of plain decoding, and the mean width of the second half."""
    speculation, rng = Speculation(Coins(), 128, 1 << 20), np.random.default_rng(0)
    s = sequence(range(10))
    s.request = Asked(num_tokens)
    done, spent_ns, widths = 0, 0, []
    while done < num_tokens:
        speculation.draft([s])
        width = s.n_draft
        s.drop_drafts()
        right = rng.random(width + 1) < rate_at(done)
        right[width] = False
        accepted = int(right.argmin())
        if width:
            speculation.verified(s, width, accepted)
        ns = ns_of_rows(1 + width)
        speculation.measured(1, 1 + width, 0, ns)
        spent_ns += ns
        done += 1 + accepted
        if done > num_tokens / 2:
            widths.append(width)
    return spent_ns / (done * ns_of_rows(1)), np.mean(widths)


CHEAP, DEAR = 20_000, 250_000  # ns of a further row


def cost(slope_ns, draft_ns=0):
    return lambda rows: 1_000_000 + slope_ns * (rows - 1) + draft_ns * (rows > 1)


def test_wide_where_rows_are_cheap_and_drafts_right():
    time, width = simulate(lambda position: 0.95, cost(CHEAP), 4000)
    assert width > 12 and time < 0.15


def test_narrow_where_rows_are_dear():
    time, width = simulate(lambda position: 0.7, cost(DEAR), 2000)
    assert 0.5 < width < 3 and time < 0.8


@pytest.mark.parametrize("slope_ns", [CHEAP, 80_000, DEAR])
@pytest.mark.parametrize("draft_ns", [0, 300_000])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.3])
def test_never_more_than_two_percent_slower_than_plain_decoding(rate, slope_ns, draft_ns):
    time, _ = simulate(lambda position: rate, cost(slope_ns, draft_ns), 1500)
    assert time < 1.02


def test_aside_where_drafts_fail():
    assert simulate(lambda position: 0.0, cost(DEAR), 2000)[1] < 0.05


def test_comes_back_when_drafts_get_right():
    time, width = simulate(lambda position: 0.9 * (position > 1000), cost(80_000, 300_000), 2000)
    assert width > 5 and time < 0.8


@pytest.mark.parametrize("slope_ns", [CHEAP, 80_000, DEAR])
@pytest.mark.parametrize("num_slow", [1, 5])
def test_passes_that_were_held_up_before_the_first_drafts_cost_little(slope_ns, num_slow):
    quick, passes = cost(slope_ns, 300_000), itertools.count()

    def ns_of_rows(rows):
        return quick(rows) * (3 if next(passes) < num_slow else 1)

    time, _ = simulate(lambda position: 0.2, ns_of_rows, 1500)
    assert time < 1.04


def test_a_cost_curve_wants_passes_without_drafts_now_and_then():
    curve = CostCurve(2, 16)
    assert curve.wants_plain and not curve.has_plain
    curve.measure(2, 1000)
    assert curve.wants_plain and curve.has_plain
    curve.measure(2, 1000)
    for _ in range(3):
        for _ in range(32):
            assert not curve.wants_plain
            curve.measure(6, 1500)
        assert curve.wants_plain
        curve.measure(2, 1000)


def test_a_cost_curve_follows_quick_passes_at_once_and_slow_ones_late():
    curve = CostCurve(1, 16)
    curve.measure(1, 3000)
    curve.measure(1, 1000)
    assert curve.ns(1) == 1000
    for _ in range(20):
        curve.measure(1, 1000)
    curve.measure(1, 9000)
    assert curve.ns(1) == pytest.approx(1050)
    for _ in range(100):
        curve.measure(1, 2000)
    assert curve.ns(1) == pytest.approx(2000, rel=0.01)


def test_the_first_dear_pass_of_a_width_is_not_believed_alone():
    curve = CostCurve(1, 16)
    curve.measure(1, 1000)
    guess = curve.ns(4)
    assert curve.measure(4, 3000) == 3000
    assert curve.ns(4) == pytest.approx((guess + 3000) / 2)
    assert curve.measure(4, 30_000) == pytest.approx(1.5 * (guess + 3000) / 2)
    for _ in range(100):
        curve.measure(4, 3000)
    assert curve.ns(4) == pytest.approx(3000, rel=0.01)


def test_no_trial_is_much_wider_than_what_was_measured():
    curve, widths = CostCurve(1, 128), []
    curve.measure(1, 1000)
    for _ in range(4):
        [width] = curve.paying([(0.99, 0.99)], [100], 127)
        widths.append(width)
        curve.measure(1 + width, 1000 + 10 * width)
    assert widths == [3, 7, 15, 31]


def test_a_device_without_a_clock_does_not_stop_the_engine():
    speculation = Speculation(Coins(), 128, 1 << 20)
    s = sequence(range(10))
    s.request = Asked()
    for _ in range(5):
        speculation.draft([s])
        rows = 1 + s.n_draft
        s.drop_drafts()
        speculation.measured(1, rows, 0, 0)


def test_a_cost_curve_joins_what_was_measured():
    curve = CostCurve(1, 128)
    assert curve.ns(1) == curve.ns(9) == 0
    curve.measure(1, 1000)
    assert curve.ns(1) == 1000 < curve.ns(2) < curve.ns(16) < 3000
    curve.measure(5, 1360)
    assert curve.ns(3) == pytest.approx(1180)
    assert curve.ns(9) == pytest.approx(1760)
    curve.measure(12, 1500)
    assert curve.ns(10) == pytest.approx(1460)
    assert curve.ns(19) == pytest.approx(1640)


def test_the_price_of_drafting_at_all_does_not_make_further_drafts_dear():
    curve = CostCurve(1, 128)
    curve.measure(1, 1000)
    for _ in range(100):
        curve.measure(4, 2000)
    assert curve.ns(3) == pytest.approx(1900, rel=0.01)
    assert curve.ns(8) == pytest.approx(2400, rel=0.01)


def expected_tokens(rates, num_drafts):
    first, further = rates
    return 1 + sum(first * further**position for position in range(num_drafts))


@pytest.mark.parametrize("seed", range(40))
def test_no_other_drafts_promise_more_tokens_per_time(seed):
    rng = np.random.default_rng(seed)
    num_sequences, room = 3, int(rng.integers(1, 13))
    curve = CostCurve(num_sequences, 128)
    steepness = rng.uniform(0.1, 0.9)
    for rows in {num_sequences, *rng.integers(num_sequences, 16, 3).tolist()}:
        curve.measure(rows, 1000 * rows**steepness)
    # No draft that could be taken is so unlikely that its price is not asked.
    rates, limits = rng.uniform(0.4, 0.99, (3, 2)).tolist(), rng.integers(0, 4, 3).tolist()

    def gain(counts):
        tokens = sum(map(expected_tokens, rates, counts))
        return tokens / curve.ns(num_sequences + sum(counts)) * curve.ns(num_sequences) / 3

    every = itertools.product(*(range(limit + 1) for limit in limits))
    best = max(gain(counts) for counts in every if sum(counts) <= room)
    counts = curve.paying(rates, limits, room)
    assert sum(counts) <= room and all(map(operator.le, counts, limits))
    assert gain(counts) == pytest.approx(best if best > 1.02 else 1)


def test_a_cost_curve_refuses_passes_that_cannot_be():
    with pytest.raises(ValueError, match="9 sequences in passes of 8 rows"):
        CostCurve(9, 8)
    curve = CostCurve(2, 8)
    for rows in (1, 9):
        with pytest.raises(ValueError, match=f"{rows} rows is not within 2 and 8"):
            curve.measure(rows, 1000)
    with pytest.raises(ValueError, match="3 rates, 3 limits of 2 sequences"):
        curve.paying([(0.5, 0.5)] * 3, [1] * 3, 4)


def lookup_time(prompt, answer, ns_of_rows):
    """Time of the passes that prompt lookup needs, over that of plain decoding."""
    speculation = Speculation(PromptLookup(), 128, 1 << 20)
    s = sequence(prompt)
    s.request = Asked(len(answer))
    done, spent_ns = 0, 0
    while done < len(answer):
        speculation.draft([s])
        drafts = s.lookup(s.n_draft).tolist() if s.n_draft else []
        s.drop_drafts()
        right = [draft == token for draft, token in zip(drafts, answer[done:], strict=False)]
        accepted = [*right, False].index(False)
        if drafts:
            speculation.verified(s, len(drafts), accepted)
        spent_ns += ns_of_rows(1 + len(drafts))
        speculation.measured(1, 1 + len(drafts), 0, ns_of_rows(1 + len(drafts)))
        for token in answer[done : done + 1 + accepted]:
            s.append(token)
        done += 1 + accepted
        s.request.num_left = len(answer) - done
        s.restore(s.num_tokens - 1)
    return spent_ns / (len(answer) * ns_of_rows(1))


@pytest.mark.parametrize("slope_ns", [CHEAP, 80_000, DEAR])
def test_prompt_lookup_gains_on_quotes_and_costs_little_on_chance_matches(slope_ns):
    rng = np.random.default_rng(2)
    page = rng.integers(100, 4000, 300).tolist()
    prose = rng.integers(0, 8, 400).tolist()  # three of eight tokens match all the time
    quote = [*prose, *page[50:250]]
    assert lookup_time(page, prose, cost(slope_ns)) < 1.03
    assert lookup_time(page, page[50:250], cost(slope_ns)) < 0.45
    assert lookup_time(page, quote, cost(slope_ns)) < 0.85


def test_a_pass_that_injects_the_features_of_many_does_not_count_as_dear():
    speculation = Speculation(Coins(), 128, 1 << 20)
    s = sequence(range(10))
    s.request = Asked()
    for num_injected, ns in ((0, 1000), (100, 90_000)):
        speculation.draft([s])
        s.drop_drafts()
        speculation.measured(1, 1, num_injected, ns)
    assert speculation._curves[1].ns(1) == 1000
