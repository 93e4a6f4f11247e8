"""BundlePool and SlotMap: who owns which bundle, and what the device is told."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mtlqwen import abi
from mtlqwen._bindings import BundlePool, SlotMap


class Heaps:
    """Counts chunks."""

    def __init__(self):
        self.sizes = {}
        self.next = 10

    def new(self, num_bundles):
        self.sizes[self.next] = num_bundles
        self.next += 1
        return self.next - 1

    def free(self, heap):
        del self.sizes[heap]

    def pool(self, max_bundles, chunk_bundles):
        return BundlePool(max_bundles, chunk_bundles, self.new, self.free)


def test_no_chunk_exists_before_the_first_bundle():
    heaps = Heaps()
    pool = heaps.pool(20, 8)
    assert heaps.sizes == {} and pool.num_bundles == 0 and pool.num_available == 20
    pool.take()
    assert heaps.sizes == {10: 8}


def test_chunks_come_with_the_need_up_to_the_budget():
    heaps = Heaps()
    pool = heaps.pool(20, 8)
    assert sorted(pool.take() for _ in range(20)) == list(range(20))
    assert list(heaps.sizes.values()) == [8, 8, 4]
    assert pool.take() is None
    assert (pool.num_bound, pool.num_free, pool.num_available) == (20, 0, 0)


def test_a_lone_sequence_gets_bundles_in_a_row():
    pool = Heaps().pool(64, 64)
    bundles = [pool.take()]
    for _ in range(40):
        bundles.append(pool.take(bundles[-1]))
    assert bundles == list(range(41))


def test_sequences_that_grow_together_get_runs_of_their_own():
    pool = Heaps().pool(64, 64)
    a, b = [pool.take()], []
    b.append(pool.take())
    for _ in range(20):
        a.append(pool.take(a[-1]))
        b.append(pool.take(b[-1]))
    assert a == list(range(a[0], a[0] + 21))
    assert b == list(range(b[0], b[0] + 21))


def test_no_run_goes_from_one_chunk_to_the_next():
    heaps = Heaps()
    pool = heaps.pool(16, 8)
    last = -1
    for _ in range(8):
        last = pool.take(last)
    assert last == 7
    pool.take(last)
    assert len(heaps.sizes) == 2


def test_a_bundle_is_free_when_its_last_reference_goes():
    pool = Heaps().pool(4, 4)
    bundle = pool.take()
    pool.retain(bundle)
    pool.bind(bundle)
    assert pool.ref_cnt(bundle) == 3
    pool.unbind(bundle)
    pool.unbind(bundle)
    assert (pool.ref_cnt(bundle), pool.is_bound(bundle), pool.num_held) == (1, False, 1)
    assert pool.num_available == 4
    pool.release(bundle)
    assert (pool.num_held, pool.num_free) == (0, 4)


def test_giving_back_more_than_was_taken_is_refused():
    pool = Heaps().pool(4, 4)
    bundle = pool.take()
    pool.retain(bundle)
    pool.unbind(bundle)
    with pytest.raises(RuntimeError, match="more often than it was taken"):
        pool.unbind(bundle)
    pool.release(bundle)
    with pytest.raises(RuntimeError, match="more often than it was taken"):
        pool.release(bundle)


def test_trim_frees_empty_chunks_alone_and_their_ids_come_back():
    heaps = Heaps()
    pool = heaps.pool(16, 8)
    bundles = [pool.take() for _ in range(16)]
    for bundle in bundles:
        if bundle != 12:
            pool.unbind(bundle)
    pool.trim()
    assert heaps.sizes == {11: 8} and pool.num_bundles == 8
    again = [pool.take() for _ in range(15)]
    assert sorted([*again, 12]) == list(range(16))
    assert pool.place(12) == (11, 4)


def test_a_bundle_out_of_range_is_refused():
    pool = Heaps().pool(4, 4)
    for call in (pool.bind, pool.unbind, pool.retain, pool.release, pool.ref_cnt, pool.place):
        with pytest.raises(IndexError):
            call(4)
        with pytest.raises(IndexError):
            call(-1)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_an_empty_pool_is_refused(sizes):
    with pytest.raises(ValueError, match="a pool of"):
        Heaps().pool(*sizes)


def slot_map(pool, max_runs=1000):
    return SlotMap(pool, [70, 80], 3, 16, [2, 2], max_runs)


def test_consecutive_bundles_are_one_operation_per_tile():
    pool = Heaps().pool(8, 8)
    slots = slot_map(pool)
    bundle = pool.take()
    for _ in range(3):
        slots.map(1, bundle)
        bundle = pool.take(bundle)
    ops = slots.take_ops()
    assert ops.tolist() == [
        (abi.MAP, 70, 10, 0, 32, 0, 6),
        (abi.MAP, 80, 10, 0, 32, 16, 6),  # tile 1 lies behind the 8 bundles of tile 0
    ]
    assert slots.num_runs == slots.runs_in(1) == 1
    assert slots.is_empty and slots.take_ops() is None


def test_tiles_of_unequal_size_lie_one_behind_the_other():
    pool = Heaps().pool(8, 8)
    slots = SlotMap(pool, [70, 80, 90], 3, 16, [2, 1, 3], 1000)
    pool.take()
    bundle = pool.take(0)
    slots.map(2, bundle)
    slots.map(2, pool.take(bundle))
    assert slots.take_ops().tolist() == [
        (abi.MAP, 70, 10, 0, 64, 2, 4),
        (abi.MAP, 80, 10, 0, 32, 16 + 1, 2),
        (abi.MAP, 90, 10, 0, 96, 16 + 8 + 3, 6),
    ]


def test_bundles_apart_are_an_operation_each():
    pool = Heaps().pool(8, 8)
    slots = slot_map(pool)
    for _ in range(6):
        pool.take()
    for bundle in (4, 2, 3):
        slots.map(0, bundle)
    ops = slots.take_ops()
    assert ops["page"].tolist() == [0, 0, 2, 2]
    assert ops["heap_page"].tolist() == [8, 24, 4, 20]
    assert ops["num_pages"].tolist() == [2, 2, 4, 4]
    assert slots.num_runs == 2


def test_a_later_bundle_continues_the_mapping_of_an_earlier_submission():
    pool = Heaps().pool(8, 8)
    slots = slot_map(pool)
    slots.map(0, pool.take())
    slots.take_ops()
    slots.map(0, pool.take(0))
    assert slots.take_ops()["page"].tolist() == [2, 2]
    assert slots.num_runs == 1


def test_unmapping_takes_the_whole_slot_in_one_operation_per_tile():
    pool = Heaps().pool(8, 8)
    slots = slot_map(pool)
    for _ in range(3):
        slots.map(2, pool.take())
    slots.take_ops()
    slots.unmap(2)
    assert slots.take_ops().tolist() == [
        (abi.UNMAP, 70, abi.NO_ID, 0, 64, 0, 6),
        (abi.UNMAP, 80, abi.NO_ID, 0, 64, 0, 6),
    ]
    assert slots.num_runs == 0
    slots.unmap(2)
    assert slots.is_empty


def test_operations_keep_their_order_when_a_slot_changes_hands():
    pool = Heaps().pool(8, 8)
    slots = slot_map(pool)
    slots.map(0, pool.take())
    slots.unmap(0)
    slots.map(0, pool.take())
    assert slots.take_ops()["kind"].tolist() == [abi.MAP] * 2 + [abi.UNMAP] * 2 + [abi.MAP] * 2


def test_room_for_mappings_counts_runs_not_bundles():
    pool = Heaps().pool(8, 8)
    slots = slot_map(pool, max_runs=2)
    bundle = pool.take()
    for _ in range(4):
        slots.map(0, bundle)
        bundle = pool.take(bundle)
    assert slots.has_room(1) and not slots.has_room(2)


def test_a_full_slot_is_refused():
    pool = Heaps().pool(32, 32)
    slots = slot_map(pool)
    for _ in range(16):
        slots.map(0, pool.take())
    with pytest.raises(IndexError, match="block 16 of a slot of 16"):
        slots.map(0, pool.take())


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["map", "map", "map", "unmap", "submit"])),
        max_size=60,
    )
)
def test_operations_replayed_give_the_mapping_that_was_asked_for(actions):
    pool = Heaps().pool(40, 8)
    slots = slot_map(pool)
    wanted = {slot: [] for slot in range(3)}
    shown = {}

    def submit():
        ops = slots.take_ops()
        for kind, buffer, heap, _, page, heap_page, num_pages in (
            [] if ops is None else ops.tolist()
        ):
            for i in range(num_pages):
                if kind == abi.MAP:
                    assert (buffer, page + i) not in shown
                    shown[buffer, page + i] = heap, heap_page + i
                else:
                    del shown[buffer, page + i]

    for slot, action in actions:
        if action == "submit":
            submit()
        elif action == "unmap":
            slots.unmap(slot)
            for bundle in wanted[slot]:
                pool.unbind(bundle)
            wanted[slot] = []
        elif len(wanted[slot]) < 13:
            bundle = pool.take(wanted[slot][-1] if wanted[slot] else -1)
            slots.map(slot, bundle)
            wanted[slot].append(bundle)
    submit()
    expected = {}
    for slot, bundles in wanted.items():
        for block, bundle in enumerate(bundles):
            heap, index = pool.place(bundle)
            for tile, buffer in enumerate((70, 80)):
                for page in range(2):
                    place = (slot * 16 + block) * 2 + page
                    expected[buffer, place] = heap, (tile * 8 + index) * 2 + page
    assert shown == expected
