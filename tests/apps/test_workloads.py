"""The papers' six workloads: their sizes, their data, and that text is learned as images are."""

from __future__ import annotations

import pathlib
from typing import Any

import flwr_datasets
import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image
from torch.nn import functional

from flhe.errors import ConfigError
from flhe_app.settings import CLASSES, TASKS, Settings
from flhe_app.tasks import check_data, generated, task_named
from flhe_app.tasks.base import Examples, evaluate, new_model, shuffler, train
from flhe_app.tasks.digits import DIGITS
from flhe_app.tasks.gradients import batch_gradient
from flhe_app.tasks.hub import fetched
from flhe_app.tasks.images import FASHION_IMAGES, FEMNIST_IMAGES
from flhe_app.tasks.networks import Block
from flhe_app.tasks.split import node_data, split_dirichlet, split_pieces
from flhe_app.tasks.text import CHARACTERS, LENGTH, SHAKESPEARE, encoded, halved
from flhe_app.tasks.workloads import WORKLOADS

SIZES = {
    "fcn": 101_770,
    "alexnet": 1_251_402,
    "lstm": 4_022_885,
    "resnet20": 269_722,
    "gru": 661_401,
    "cnn": 1_203_798,
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_sizes_are_the_published_ones(name: str) -> None:
    task = WORKLOADS[name]
    assert task.name == name
    count = sum(parameter.numel() for parameter in new_model(task, 0).parameters())
    assert count == SIZES[name.removesuffix("-digits")]
    # To as many digits as the papers print: thousands for FCN, hundredths of a million for the others
    digits = 5 if task.parameters == 101_770 else 2
    assert f"{count / 1e6:.{digits}f}" == f"{task.parameters / 1e6:.{digits}f}"


def test_every_task_has_its_classes() -> None:
    assert tuple(CLASSES) == TASKS
    assert all(task_named(name).classes == classes for name, classes in CLASSES.items())
    assert set(WORKLOADS) < set(TASKS)
    lstm, digits = (Settings(task=task, fair_q=1.0).fair for task in ("lstm", "digits"))
    assert lstm is not None
    assert digits is not None
    assert lstm.chance == pytest.approx(np.log(CHARACTERS))
    assert digits.chance == pytest.approx(np.log(10))


@pytest.mark.parametrize("name", ["cifar10", *WORKLOADS])
def test_generated_data_fit_the_model(name: str) -> None:
    task = task_named(name)
    data = generated(task, 6, 1)
    again, other = generated(task, 6, 1), generated(task, 6, 2)
    assert [len(half.labels) for half in data] == [6, 1]
    assert torch.equal(data.train.images, again.train.images)
    assert not torch.equal(data.train.images, other.train.images)
    with torch.no_grad():
        logits = new_model(task, 0).eval()(data.train.images)
    assert logits.shape[:2] == (6, task.classes)
    assert logits.shape[2:] == data.train.labels.shape[1:]
    assert 0 <= data.train.labels.min() <= data.train.labels.max() < task.classes


def test_generated_refuses() -> None:
    with pytest.raises(ConfigError, match="count=0"):
        generated(task_named("fcn"), 0, 0)
    with pytest.raises(ConfigError, match="only workloads and vision tasks"):
        generated(DIGITS, 3, 0)


def test_a_block_that_narrows_keeps_every_other_pixel() -> None:
    """With convolutions that give nothing, what went in comes out, thinned, with planes of zeros."""
    block = Block(2, 4).eval()
    for parameter in block.parameters():
        torch.nn.init.zeros_(parameter)
    images = torch.rand(1, 2, 4, 4)
    out = block(images)
    assert out.shape == (1, 4, 2, 2)
    assert torch.equal(out[:, :2], images[:, :, ::2, ::2])
    assert not out[:, 2:].any()


# --- text ---


def text_file(path: pathlib.Path, characters: int = 80 * 60 + 7) -> str:
    text = "".join(chr(32 + (7 * i) % 95) if i % 31 else "\n" for i in range(characters))
    path.write_text(text, encoding="utf-8")
    return text


def test_codes_of_characters() -> None:
    assert encoded("\n !~").tolist() == [0, 1, 2, 95]
    assert encoded("é\t\x7f😀").tolist() == [96] * 4
    assert max(encoded("\n é~").tolist()) == CHARACTERS - 1
    assert CHARACTERS == 97


def test_windows_of_a_text(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tinyshakespeare.txt"
    text = text_file(path)
    (tmp_path / "other.txt").write_text("not this one")
    for where in (tmp_path, path):
        data = SHAKESPEARE.load("gru", str(where), download=False)
        assert [tuple(half.images.shape) for half in data] == [(54, LENGTH), (6, LENGTH)]
        codes = torch.from_numpy(encoded(text))
        images = torch.cat([half.images for half in data])
        labels = torch.cat([half.labels for half in data])
        assert torch.equal(images.flatten(), codes[: 60 * LENGTH])
        assert torch.equal(labels.flatten(), codes[1 : 60 * LENGTH + 1])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, r"put a text, shakespeare\.txt, into a directory .* --data-dir.*download=true"),
        ({"a.txt": b"x" * 5000, "b.txt": b"x" * 5000}, r"holds a\.txt, b\.txt; name one of them"),
        ({"short.txt": b"x" * 1600}, r"short\.txt has 1600 characters; a text of 1601 or more"),
        ({"latin.txt": b"\xe9" * 5000}, r"latin\.txt cannot be read; it must be a text in UTF-8"),
    ],
    ids=["none", "several", "short", "latin"],
)
def test_texts_that_cannot_be_learned(
    files: dict[str, bytes], says: str, tmp_path: pathlib.Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        task_named("lstm").load(str(tmp_path), download=False)


def test_without_a_directory_nothing_is_fetched_unasked() -> None:
    for name in ("gru", "cnn", "fcn", "resnet20"):
        with pytest.raises(ConfigError, match=r"needs its data set: put .* --data-dir"):
            task_named(name).load("", download=False)


def test_text_scores_every_position() -> None:
    task = task_named("gru")
    data = generated(task, 8, 0)
    model = new_model(task, 0)
    with torch.no_grad():
        logits = model(data.train.images)
    by_hand = [
        functional.cross_entropy(logits[:, :, at], data.train.labels[:, at]).item()
        for at in range(LENGTH)
    ]
    score = evaluate(model, data.train, batch_size=3)
    assert score.loss == pytest.approx(np.mean(by_hand), rel=1e-5)
    right = (logits.argmax(1) == data.train.labels).float().mean().item()
    assert score.accuracy == pytest.approx(right, abs=1e-6)
    found = batch_gradient(model, data.train, batch_size=8, shuffle=shuffler(0, 0, 1))
    assert found.examples == 8
    assert found.score.loss == pytest.approx(score.loss, rel=1e-5)
    assert found.score.accuracy == pytest.approx(score.accuracy, abs=1e-6)


def test_text_that_repeats_is_learned() -> None:
    task = task_named("gru")
    codes = torch.arange(4 * (LENGTH + 1)).remainder(5).reshape(4, LENGTH + 1)
    examples = Examples(codes[:, :-1], codes[:, 1:])
    model = new_model(task, 0)
    before = evaluate(model, examples)
    train(
        model,
        examples,
        epochs=8,
        learning_rate=0.01,
        batch_size=4,
        shuffle=shuffler(0, 0, 1),
        optimizer="adam",
    )
    after = evaluate(model, examples)
    assert before.accuracy < 0.5 < after.accuracy
    assert after.loss < before.loss / 2


def test_text_is_split_evenly_or_in_pieces(tmp_path: pathlib.Path) -> None:
    text_file(tmp_path / "some.txt")
    settings = Settings(task="gru", data_dir=str(tmp_path))
    parts = [node_data(settings, node, 3) for node in range(3)]
    assert [len(part.train.labels) for part in parts] == [18] * 3
    assert [len(part.test.labels) for part in parts] == [2] * 3
    pieces = split_pieces(10, 3)
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    with pytest.raises(ConfigError, match="use fewer nodes"):
        split_pieces(2, 3)
    with pytest.raises(ConfigError, match='text has one at every position: use partition="iid"'):
        split_dirichlet(np.zeros((100, LENGTH), np.int64), 3, 0, 1.0)


# --- images ---


def test_optimizers_and_batches() -> None:
    task, data = task_named("fcn-digits"), generated(task_named("fcn-digits"), 40, 0)

    def weights(**how: Any) -> torch.Tensor:
        model = new_model(task, 0)
        train(
            model,
            data.train,
            epochs=1,
            learning_rate=0.01,
            batch_size=8,
            shuffle=shuffler(0, 0, 1),
            **how,
        )
        return model.state_dict()["1.bias"]

    found = {name: weights(optimizer=name) for name in ("sgd", "adam", "rmsprop")}
    assert torch.equal(weights(), found["sgd"])
    assert not torch.equal(found["adam"], found["rmsprop"])
    assert not torch.equal(found["adam"], found["sgd"])
    assert torch.equal(weights(batches=5), weights())
    assert not torch.equal(weights(batches=2), weights())
    # Adam's first step is the learning rate, whatever the gradient
    first = weights(optimizer="adam", batches=1) - new_model(task, 0).state_dict()["1.bias"]
    moved = first[first != 0]
    assert len(moved) > 30
    assert torch.allclose(moved.abs(), torch.tensor(0.01), rtol=1e-2)
    with pytest.raises(ConfigError, match="optimizer='adamw' is unknown; use one of sgd, adam"):
        weights(optimizer="adamw")


def test_enlarged_digits() -> None:
    small = DIGITS.load("", download=False)
    for name in ("fcn-digits", "cnn-digits"):
        task = task_named(name)
        data = task.load("", download=False)
        assert tuple(data.train.images.shape) == (task.train_size, 1, 28, 28)
        assert torch.equal(data.train.labels, small.train.labels)
        assert -1 <= data.train.images.min() < data.train.images.max() <= 1
        enlarged = functional.interpolate(small.test.images, size=28, mode="bilinear")
        assert torch.allclose(data.test.images, 2 * enlarged - 1)


def sample(path: pathlib.Path, size: int, most: int) -> None:
    rng = np.random.default_rng(2)  # test data
    half = {"x": rng.integers(0, 256, (9, size, size)).astype(np.uint8), "y": np.arange(9) % most}
    both = {f"{key}_{name}": half[key] for key in "xy" for name in ("train", "test")}
    np.savez(path, allow_pickle=False, **both)


def test_a_directory_may_hold_one_file(tmp_path: pathlib.Path) -> None:
    assert not FASHION_IMAGES.there(str(tmp_path))
    assert not FASHION_IMAGES.there("")
    sample(tmp_path / "fashion-sample.npz", 28, 10)
    sample(tmp_path / "femnist.npz", 28, 62)
    assert FASHION_IMAGES.there(str(tmp_path))
    for name in ("fcn", "fashion-mnist", "cnn"):
        data = task_named(name).load(str(tmp_path), download=False)
        assert tuple(data.train.images.shape) == (9, 1, 28, 28)
    sample(tmp_path / "fashion-more.npz", 28, 10)
    with pytest.raises(ConfigError, match=r"fashion-more\.npz, fashion-sample\.npz; name one"):
        task_named("fcn").load(str(tmp_path), download=False)


def test_labels_that_the_model_does_not_have(tmp_path: pathlib.Path) -> None:
    with np.load(_with_labels(tmp_path / "fashion.npz", 10)) as file:
        assert file["y_train"].max() == 10
    with pytest.raises(ConfigError, match=r"holds labels 0 to 10, expected 0 to 9"):
        task_named("fcn").load(str(tmp_path / "fashion.npz"), download=False)


def _with_labels(path: pathlib.Path, most: int) -> pathlib.Path:
    images, labels = np.zeros((2, 28, 28), np.uint8), np.array([0, most])
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


# --- what is fetched ---


class Hub:
    """Stands for FederatedDataset: gives rows, and keeps what it was asked."""

    asked: list[dict[str, Any]]
    rows: Dataset

    def __init__(self, **how: Any) -> None:
        self.asked.append(how)

    def load_split(self, split: str) -> Dataset:
        assert split == "train"
        return self.rows


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    monkeypatch.setattr(Hub, "asked", [], raising=False)
    monkeypatch.setattr(flwr_datasets, "FederatedDataset", Hub)
    return Hub


def test_femnist_is_fetched_when_asked(hub: type[Hub], tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(3)  # test data
    pixels = rng.integers(0, 256, (30, 28, 28)).astype(np.uint8)
    features = Features({"image": ImageFeature(), "character": Value("int64")})
    images = [Image.fromarray(image) for image in pixels]
    hub.rows = Dataset.from_dict({"image": images, "character": list(range(30))}, features=features)
    task = task_named("cnn")
    with pytest.raises(ConfigError, match=r"femnist\.npz is missing in the data directory"):
        task.load(str(tmp_path), download=False)
    assert hub.asked == []
    data = task.load(str(tmp_path), download=True)
    assert hub.asked[0]["dataset"] == FEMNIST_IMAGES.hub == "flwrlabs/femnist"
    assert hub.asked[0]["cache_dir"] == str(tmp_path)
    assert data.test.labels.tolist() == [9, 19, 29]
    assert data.train.labels.tolist() == [i for i in range(30) if i % 10 != 9]
    expected = torch.from_numpy(pixels[9].astype(np.float32)) / 255 * 2 - 1
    assert torch.allclose(data.test.images[0, 0], expected, atol=1e-6)


def test_shakespeare_is_fetched_when_asked(hub: type[Hub]) -> None:
    text = "".join(chr(33 + i % 90) for i in range(LENGTH * 41))
    starts = range(LENGTH * 40)  # as LEAF has them: each row begins one character on
    rows = {"x": [text[i : i + LENGTH] for i in starts], "y": [text[i + LENGTH] for i in starts]}
    hub.rows = Dataset.from_dict(rows)
    data = task_named("lstm").load("", download=True)
    assert "cache_dir" not in hub.asked[0]
    codes = torch.from_numpy(encoded(text))
    images = torch.cat([half.images for half in data])
    labels = torch.cat([half.labels for half in data])
    assert torch.equal(images.flatten(), codes[: 40 * LENGTH])
    assert torch.equal(labels.flatten(), codes[1 : 40 * LENGTH + 1])
    assert [len(half.labels) for half in data] == [36, 4]
    hub.rows = Dataset.from_dict({"x": ["short"], "y": ["x"]})
    with pytest.raises(ConfigError, match="does not hold windows of 80 characters"):
        task_named("lstm").load("", download=True)


def test_no_network_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**_: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(flwr_datasets, "FederatedDataset", unreachable)
    with pytest.raises(ConfigError, match=r"could not be fetched \(ConnectionError\)"):
        fetched("gru", "flwrlabs/shakespeare", None)


def test_a_run_without_its_data_is_refused_early(tmp_path: pathlib.Path) -> None:
    for name in ("digits", "fcn-digits", "cnn-digits"):
        check_data(name, "", download=False)
    check_data("gru", "", download=True)
    check_data("fcn", str(tmp_path), download=False)
    for name in ("fcn", "gru", "cifar10"):
        with pytest.raises(ConfigError, match=f"task '{name}' needs its data set: .* --data-dir"):
            check_data(name, "", download=False)
    with pytest.raises(ConfigError, match="no such directory or file"):
        check_data("gru", str(tmp_path / "no"), download=False)


def test_halves_of_few_windows() -> None:
    windows = np.zeros((5, LENGTH), np.int64)
    assert [len(half.labels) for half in halved(windows, windows)] == [4, 1]
