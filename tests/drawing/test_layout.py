"""Places of boxes: rows, order, and nothing on top of another."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from quantkit.drawing.layout import GAP, place


def test_a_chain_stands_in_a_column() -> None:
    placed = place([(60.0, 20.0)] * 3, [(0, 1), (1, 2)])
    assert len({x for x, _ in placed.centers}) == 1
    assert [y for _, y in placed.centers] == sorted(y for _, y in placed.centers)


def test_an_edge_over_a_row_runs_beside_the_box_in_it() -> None:
    placed = place([(60.0, 20.0)] * 3, [(0, 1), (1, 2), (0, 2)])
    (_, bend, _) = placed.paths[2]
    x, y = placed.centers[1]
    assert bend[1] == y
    assert abs(bend[0] - x) >= 30 + GAP


def test_branches_do_not_cross() -> None:
    # 0 feeds 1 and 2; 1 feeds 4, 2 feeds 3: in file order the edges would cross.
    placed = place([(60.0, 20.0)] * 5, [(0, 1), (0, 2), (2, 3), (1, 4)])
    xs = [x for x, _ in placed.centers]
    assert (xs[1] < xs[2]) == (xs[4] < xs[3])


def test_an_edge_against_the_order_is_drawn() -> None:
    placed = place([(60.0, 20.0)] * 2, [(0, 1), (1, 0), (1, 1)])
    assert len(placed.paths[1]) == 2
    assert placed.paths[2] == ()


def test_nothing() -> None:
    assert place([], []).width == 0


sizes = st.lists(st.tuples(st.floats(10, 200), st.floats(10, 60)), min_size=1, max_size=12)


@given(sizes, st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_boxes_never_overlap_and_stay_in_the_picture(
    boxes: list[tuple[float, float]], pairs: list[tuple[int, int]]
) -> None:
    edges = [(start, end) for start, end in pairs if max(start, end) < len(boxes)]
    placed = place(boxes, edges)
    corners = [
        (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        for (x, y), (width, height) in zip(placed.centers, boxes, strict=True)
    ]
    for left, top, right, bottom in corners:
        assert left >= 0
        assert top >= 0
        assert right <= placed.width
        assert bottom <= placed.height
    for one, other in combinations(corners, 2):
        slack = 1e-6
        is_apart = (
            one[2] <= other[0] + slack
            or other[2] <= one[0] + slack
            or one[3] <= other[1] + slack
            or other[3] <= one[1] + slack
        )
        assert is_apart
    for start, end in edges:
        if start < end:
            assert placed.centers[start][1] < placed.centers[end][1]
    assert place(boxes, edges) == placed
