"""Layout of boxes: rows, order, and no overlap."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from quantkit.drawing.layout import GAP, place_boxes


def test_chain_is_one_column() -> None:
    placement = place_boxes([(60.0, 20.0)] * 3, [(0, 1), (1, 2)])
    assert len({x for x, _ in placement.centers}) == 1
    assert [y for _, y in placement.centers] == sorted(y for _, y in placement.centers)


def test_edge_across_a_row_avoids_its_box() -> None:
    placement = place_boxes([(60.0, 20.0)] * 3, [(0, 1), (1, 2), (0, 2)])
    (_, bend, _) = placement.paths[2]
    x, y = placement.centers[1]
    assert bend[1] == y
    assert abs(bend[0] - x) >= 30 + GAP


def test_branches_do_not_cross() -> None:
    # Edges 0-1, 0-2, 1-4 and 2-3 cross in file order.
    placement = place_boxes([(60.0, 20.0)] * 5, [(0, 1), (0, 2), (2, 3), (1, 4)])
    xs = [x for x, _ in placement.centers]
    assert (xs[1] < xs[2]) == (xs[4] < xs[3])


def test_edge_against_the_order_is_drawn() -> None:
    placement = place_boxes([(60.0, 20.0)] * 2, [(0, 1), (1, 0), (1, 1)])
    assert len(placement.paths[1]) == 2
    assert placement.paths[2] == ()


def test_empty_layout_has_no_size() -> None:
    assert place_boxes([], []).width == 0


sizes = st.lists(st.tuples(st.floats(10, 200), st.floats(10, 60)), min_size=1, max_size=12)


@given(sizes, st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_boxes_never_overlap_and_stay_inside(boxes: list[tuple[float, float]], pairs: list[tuple[int, int]]) -> None:
    edges = [(start, end) for start, end in pairs if max(start, end) < len(boxes)]
    placement = place_boxes(boxes, edges)
    corners = [
        (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        for (x, y), (width, height) in zip(placement.centers, boxes, strict=True)
    ]
    for left, top, right, bottom in corners:
        assert 0 <= left <= right <= placement.width
        assert 0 <= top <= bottom <= placement.height
    for box, other in combinations(corners, 2):
        slack = 1e-6
        is_apart = (
            box[2] <= other[0] + slack
            or other[2] <= box[0] + slack
            or box[3] <= other[1] + slack
            or other[3] <= box[1] + slack
        )
        assert is_apart
    for start, end in edges:
        if start < end:
            assert placement.centers[start][1] < placement.centers[end][1]
    assert place_boxes(boxes, edges) == placement
