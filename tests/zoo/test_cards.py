"""Model cards: the installed cards, and rejected cards."""

import re
from pathlib import Path, PurePosixPath

import pytest
from file_server import CARD

from quantkit.errors import InputError, UsageError
from quantkit.ir.tensor import DType
from quantkit.zoo.archives import safe_name
from quantkit.zoo.cards import ModelCard, find_card, list_cards, read_card
from quantkit.zoo.fetch import locate, obtain

WHOLE = CARD.replace("ARCHIVE", 'urls = ["https://host/small.tgz"]\n[[members]]\nname = "graph.pb"')
README = Path(__file__).parents[2] / "models" / "README.md"


def test_the_known_models_have_cards() -> None:
    names = [card.name for card in list_cards()]
    assert {"inception_v3", "inception_v3_2016", "mobilenet_v1", "mobilenet_v2"} <= set(names)
    assert names == sorted(names)


@pytest.mark.parametrize("card", list_cards(), ids=lambda card: card.name)
def test_card_is_consistent(card: ModelCard) -> None:
    (end,) = card.inputs
    steps = card.preprocessing
    assert end.dtype is DType.FLOAT
    assert end.shape[1:] == (steps.height, steps.width, steps.channels)
    assert card.outputs[0].shape[-1] == card.num_classes
    assert all(len(numbers) in (1, steps.channels) for numbers in (steps.mean, steps.std))
    assert all(safe_name(member.name) == member.name for member in card.members)
    assert all(prediction.class_id < card.num_classes for prediction in card.predictions)
    assert card.title
    assert card.description
    assert card.license == "Apache-2.0"


@pytest.mark.parametrize("card", list_cards(), ids=lambda card: card.name)
def test_every_download_has_a_checksum(card: ModelCard) -> None:
    archive = card.archive
    assert archive is None or archive.sha256 or all(member.sha256 for member in card.members)
    assert all(card.member(card.graph).sha256 for member in card.members if member.urls)


@pytest.mark.parametrize("card", list_cards(), ids=lambda card: card.name)
def test_labels_have_files_or_names(card: ModelCard) -> None:
    owner = find_card(card.labels.card) if card.labels.card else card
    assert owner.labels.order == card.labels.order
    assert set(card.labels.files) <= {member.name for member in owner.members}
    sizes = {"ilsvrc2012": 1008, "synsets_after_0": 1001, "synsets": 1000}
    assert sizes.get(card.labels.order, card.num_classes) == card.num_classes


@pytest.mark.parametrize("card", list_cards(), ids=lambda card: card.name)
def test_the_readme_lists_every_card(card: ModelCard) -> None:
    (row,) = (line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{card.name}` |"))
    steps = card.preprocessing
    assert f"`{card.inputs[0].name}` {steps.height}x{steps.width}" in row
    assert f"(x - {steps.mean[0]:g}) / {steps.std[0]:g}" in row
    assert f"`{card.outputs[0].name}`, {card.num_classes}" in row
    if card.archive and card.archive.num_bytes:
        assert f"{card.archive.num_bytes / 1e6:.1f} MB" in row


def test_example_of_the_readme_is_a_valid_card() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    example = re.sub(r'sha256 = "\.\.\."', f'sha256 = "{"0" * 64}"', example)
    card = read_card(example, "shapes.toml")
    assert card.accuracy is not None
    assert len(card.labels.names) == card.num_classes


@pytest.mark.parametrize("card", [card for card in list_cards() if card.is_bundled], ids=lambda card: card.name)
def test_bundled_model_is_installed(card: ModelCard) -> None:
    path = locate(card)
    assert path is not None
    assert obtain(card).path == path
    assert obtain(card, offline=True).is_cached
    with pytest.raises(UsageError, match="part of the installation"):
        obtain(card, url="http://host/a")


def test_the_nearest_name_is_suggested() -> None:
    assert find_card("inception_v3").num_classes == 1008
    with pytest.raises(UsageError, match="no model card 'inception_v4'") as caught:
        find_card("inception_v4")
    assert "'inception_v3'" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        find_card("vgg")
    assert "mobilenet_v2" in caught.value.hint


def test_all_keys_of_a_card_are_read() -> None:
    card = read_card(WHOLE, "small.toml")
    assert card.preprocessing.mean == (128.0,)
    assert card.outputs[0].shape == (1, 2)
    assert card.archive is not None
    assert card.archive.num_bytes is None
    assert not card.is_bundled
    assert PurePosixPath(card.graph) == PurePosixPath(card.member("graph.pb").name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Cats and dogs"', "", "small.toml: title is missing"),
        ("num_classes = 2", 'num_classes = "2"', "num_classes: expected int, found '2'"),
        ("num_classes = 2", "num_classes = true", "num_classes: expected int, found True"),
        ("num_classes = 2", "num_classes = 2\nnum_clases = 2", "unknown key 'num_clases'"),
        ('dtype = "float"', 'dtype = "float32"', r"inputs\[0\]: dtype: 'float32' is not one of"),
        ('order = "own"', 'order = "sorted"', "labels: order: 'sorted' is not one of"),
        ("[preprocessing]", "[preprocessing.more]", "preprocessing: unknown key 'more'"),
        ("mean = 128", 'mean = ["a"]', r"preprocessing: mean\[0\]: expected float, found 'a'"),
        ("[labels]", "[labels", "small.toml is not TOML"),
        ('graph = "graph.pb"', 'graph = "other.pb"', "graph 'other.pb' is not among the members"),
        ('name = "labels.txt"', 'name = "graph.pb"', "two members have one name"),
        ("https://host/", "ftp://host/", "a url is neither http nor https"),
        ('"https://host/small.tgz"', "", "the archive has no urls"),
        ("std = 128", "std = 0", "preprocessing.std has a zero"),
        ("std = 128", "std = 128\nchannels = 4", "preprocessing.channels is 4"),
        ('files = ["labels.txt"]', "", "labels has neither files nor names"),
        ('files = ["labels.txt"]', 'names = ["cat"]', "labels.names has 1 names for 2 classes"),
        ('files = ["labels.txt"]', 'files = ["words.txt"]', "a file of labels is not among the members"),
        ('name = "graph.pb"', 'name = "graph.pb"\nsha256 = "ABC"', "a sha256 is not 64 hexadecimal digits"),
        ('name = "small"', 'name = "../small"', "is not lower-case letters"),
    ],
)
def test_a_wrong_card_is_rejected_with_the_location(old: str, new: str, message: str) -> None:
    assert old in WHOLE
    with pytest.raises(InputError, match=message) as caught:
        read_card(WHOLE.replace(old, new, 1), "small.toml")
    assert caught.value.hint or "expected" in message
