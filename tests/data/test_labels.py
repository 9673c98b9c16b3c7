from pathlib import Path

import pytest

from quantkit.data.labels import LABEL_MAP_FILE, NAMES_FILE, Labels, Order, order_of, read_labels
from quantkit.errors import InputError

SHARED = Path(__file__).parents[2].parent / "shared" / "inception_v3"
needs_release = pytest.mark.skipif(
    not (SHARED / LABEL_MAP_FILE).exists(), reason="the label files of the 2015 release are not in ../shared"
)

# Rank among the sorted synsets, id in the 2012 challenge, WordNet id, name.
LANDMARKS = [
    (0, 449, "n01440764", "tench, Tinca tinca"),
    (8, 384, "n01514859", "hen"),
    (278, 1, "n02119789", "kit fox, Vulpes macrotis"),
    (388, 169, "n02510455", "giant panda, panda, panda bear, coon bear, Ailuropoda melanoleuca"),
    (543, 1000, "n03255030", "dumbbell"),
    (652, 866, "n03763968", "military uniform"),
]


def list_names(order: Order) -> list[str]:
    """Return the names of a list in a known order, with invented names between the landmarks."""
    length, first = {
        Order.ILSVRC2012: (1001, None),
        Order.SYNSETS_AFTER_0: (1001, 1),
        Order.SYNSETS: (1000, 0),
    }[order]
    lines = [f"class number {index}" for index in range(length)]
    for rank, challenge_id, _, name in LANDMARKS:
        lines[challenge_id if first is None else rank + first] = name
    return lines


def write_list(folder: Path, lines: list[str], name: str = "labels.txt") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_pair(folder: Path) -> Path:
    entries = [
        f'entry {{\n  target_class: {number}\n  target_class_string: "{synset}"\n}}'
        for _, number, synset, _ in LANDMARKS
    ]
    (folder / LABEL_MAP_FILE).write_text("# comment\n" + "\n".join(entries))
    (folder / NAMES_FILE).write_text("\n".join(f"{synset}\t{name}" for _, _, synset, name in LANDMARKS))
    return folder / LABEL_MAP_FILE


@pytest.mark.parametrize("order", [Order.ILSVRC2012, Order.SYNSETS_AFTER_0, Order.SYNSETS])
def test_known_orders_are_recognized(tmp_path: Path, order: Order) -> None:
    assert read_labels(write_list(tmp_path, list_names(order))).order is order


def test_underscores_in_names_are_recognized(tmp_path: Path) -> None:
    lines = [line.partition(",")[0].replace(" ", "_") for line in list_names(Order.SYNSETS)]
    assert read_labels(write_list(tmp_path, lines)).order is Order.SYNSETS


def test_numbered_lines_lose_their_numbers(tmp_path: Path) -> None:
    lines = [f"{index}:{name}" for index, name in enumerate(list_names(Order.SYNSETS_AFTER_0))]
    labels = read_labels(write_list(tmp_path, lines))
    assert labels.order is Order.SYNSETS_AFTER_0
    assert labels.name(389).startswith("giant panda")


def test_ids_of_the_challenge_may_begin_with_1(tmp_path: Path) -> None:
    labels = read_labels(write_list(tmp_path, list_names(Order.ILSVRC2012)[1:]))
    assert labels.order is Order.ILSVRC2012
    assert labels.name(1).startswith("kit fox")
    assert labels.name(169).startswith("giant panda")


def test_lines_of_wordnet_ids(tmp_path: Path) -> None:
    write_pair(tmp_path)
    lines = [f"n{90000000 + index}" for index in range(1000)]
    for rank, _, synset, _ in LANDMARKS:
        lines[rank] = synset
    labels = read_labels(write_list(tmp_path, lines))
    assert labels.order is Order.SYNSETS
    assert labels.name(0) == "tench, Tinca tinca"
    assert labels.wordnet[388] == "n02510455"
    assert labels.name(1) == "n90000001"


def test_lists_of_other_classes_are_read(tmp_path: Path) -> None:
    labels = read_labels(write_list(tmp_path, ["cat", "dog", "", "Ä fish", "", ""]))
    assert (labels.order, labels.length) == (Order.OWN, 4)
    assert [labels.name(index) for index in range(4)] == ["cat", "dog", "(unused)", "Ä fish"]
    labels.check(4)


def test_label_map_is_read_from_either_file_or_the_folder(tmp_path: Path) -> None:
    path = write_pair(tmp_path)
    dictionary = [f"n{80000000 + index}\tthing {index}" for index in range(2000)]
    with (tmp_path / NAMES_FILE).open("a") as file:
        file.write("\n" + "\n".join(dictionary))
    for source in (path, tmp_path, tmp_path / NAMES_FILE):
        labels = read_labels(source)
        assert labels.order is Order.ILSVRC2012
        assert labels.wordnet[169] == "n02510455"
        assert labels.name(1000) == "dumbbell"
        assert labels.name(0) == labels.name(1007) == "(unused)"


def test_error_names_missing_file_of_the_release(tmp_path: Path) -> None:
    path = write_pair(tmp_path)
    (tmp_path / NAMES_FILE).unlink()
    with pytest.raises(InputError, match=f"{NAMES_FILE} with their names is missing"):
        read_labels(path)


@needs_release
def test_label_map_of_the_release_is_read() -> None:
    labels = read_labels(SHARED / LABEL_MAP_FILE)
    assert labels.order is Order.ILSVRC2012
    assert (len(labels.names), min(labels.names), max(labels.names)) == (1000, 1, 1000)
    for _, number, synset, name in LANDMARKS:
        assert (labels.wordnet[number], labels.name(number)) == (synset, name)
    cranes = [number for number, name in labels.names.items() if name == "crane"]
    assert len(cranes) == 2
    assert len({labels.wordnet[number] for number in cranes}) == 2
    labels.check(1008)


@needs_release
def test_no_class_has_the_same_number_in_both_orders(tmp_path: Path) -> None:
    release = read_labels(SHARED / LABEL_MAP_FILE)
    by_synset = sorted((synset, number) for number, synset in release.wordnet.items())
    assert all(number != rank for rank, (_, number) in enumerate(by_synset, 1))
    lines = ["background", *(release.names[number] for _, number in by_synset)]
    assert read_labels(write_list(tmp_path, lines)).order is Order.SYNSETS_AFTER_0


def test_labels_of_the_other_release_are_rejected(tmp_path: Path) -> None:
    labels = read_labels(write_list(tmp_path, list_names(Order.SYNSETS_AFTER_0)))
    labels.check(1001)
    with pytest.raises(InputError) as caught:
        labels.check(1008)
    assert "has 1008 class scores in the order of the 2015 release" in caught.value.message
    assert "has 1001 in the order of the sorted synsets" in caught.value.message
    assert "every prediction would be wrong" in caught.value.message
    assert LABEL_MAP_FILE in caught.value.hint


@pytest.mark.parametrize("num_outputs", [1001, 1000, 10])
def test_label_map_is_rejected_for_other_graphs(tmp_path: Path, num_outputs: int) -> None:
    labels = read_labels(write_pair(tmp_path))
    labels.check(1008)
    with pytest.raises(InputError, match="every prediction would be wrong"):
        labels.check(num_outputs)


def test_a_card_may_define_the_order(tmp_path: Path) -> None:
    labels = read_labels(write_list(tmp_path, list_names(Order.ILSVRC2012)))
    labels.check(1001, Order.ILSVRC2012)
    with pytest.raises(InputError, match="every prediction would be wrong"):
        labels.check(1001, Order.SYNSETS_AFTER_0)


def test_list_of_another_length_is_rejected(tmp_path: Path) -> None:
    labels = read_labels(write_list(tmp_path, ["cat", "dog"]))
    with pytest.raises(InputError, match=r"has 3 class scores; the label file .* has 2"):
        labels.check(3)


def test_empty_labels_match_every_model() -> None:
    Labels().check(17)
    assert Labels().name(3) == "class 3"
    assert order_of(17) is Order.OWN


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (b"\x89PNG\x00\xff\xfe", "is not text"),
        (b"<!DOCTYPE html><html>", "is a web page"),
        (b"entry {\n target_class: 3\n}", "without class or WordNet id"),
        (b"target_class { }", "has no entries"),
    ],
)
def test_broken_label_files_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_labels(tmp_path / "labels.txt")


def test_class_with_two_names_is_rejected(tmp_path: Path) -> None:
    path = write_pair(tmp_path)
    path.write_text(path.read_text() + 'entry { target_class: 169 target_class_string: "n01440764" }')
    with pytest.raises(InputError, match="two WordNet ids to class 169"):
        read_labels(path)


def test_folder_with_no_or_several_label_files_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no label file"):
        read_labels(tmp_path)
    for name in ("a.txt", "b.txt"):
        write_list(tmp_path, ["x"], name)
    with pytest.raises(InputError, match="several text files"):
        read_labels(tmp_path)


def test_missing_label_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_labels(tmp_path / "none.txt")
