"""Tasks: their models, who holds which data, and that training depends on its seeds alone."""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from flhe.errors import ConfigError
from flhe_app.settings import Settings
from flhe_app.tasks import TASKS, task_named
from flhe_app.tasks.base import (
    MOMENTUM,
    Data,
    Examples,
    add_pull,
    batch_gradient,
    evaluate,
    new_model,
    shuffler,
    train,
)
from flhe_app.tasks.images import FASHION_IMAGES
from flhe_app.tasks.networks import resnet20
from flhe_app.tasks.split import MIN_PARTITION, node_data, split_dirichlet, split_iid
from flhe_app.tasks.text import CHARACTERS, LENGTH, encoded
from flhe_lab.bench.synthetic import generated

SIZES = {
    "fcn": 101_770,
    "alexnet": 1_251_402,
    "lstm": 4_022_885,
    "resnet20": 269_722,
    "gru": 661_401,
    "cnn": 1_203_798,
}


def both(data: Data, what: str) -> torch.Tensor:
    """Images or labels of both halves, in a row."""
    return torch.cat([getattr(half, what) for half in data])


# --- models ---


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_model_that_its_seed_decides_and_data_that_fit_it(name: str) -> None:
    task = task_named(name)
    assert task.name == name
    before = torch.random.get_rng_state()
    model = new_model(task, 1)
    one, same, other = (new_model(task, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)
    if task.parameters:
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == SIZES[name.removesuffix("-digits")]
        # To as many digits as the papers print: thousands for FCN, else hundredths of a million
        digits = 5 if task.parameters == 101_770 else 2
        assert f"{count / 1e6:.{digits}f}" == f"{task.parameters / 1e6:.{digits}f}"
    data, again, other_data = (generated(task, 6, seed) for seed in (1, 1, 2))
    assert [len(half.labels) for half in data] == [6, 1]
    assert torch.equal(data.train.images, again.train.images)
    assert not torch.equal(data.train.images, other_data.train.images)
    with torch.no_grad():
        logits = model.eval()(data.train.images)
    assert logits.shape[:2] == (6, task.source.classes)
    assert logits.shape[2:] == data.train.labels.shape[1:]
    assert 0 <= data.train.labels.min() <= data.train.labels.max() < task.source.classes


def test_a_block_that_narrows_keeps_every_other_pixel() -> None:
    """With convolutions that give nothing, what went in comes out, thinned, with planes of zeros."""
    block = resnet20()[6].eval()  # the fourth, the first that narrows
    for parameter in block.parameters():
        torch.nn.init.zeros_(parameter)
    images = torch.rand(1, 16, 4, 4)
    out = block(images)
    assert out.shape == (1, 32, 2, 2)
    assert torch.equal(out[:, :16], images[:, :, ::2, ::2])
    assert not out[:, 16:].any()


# --- who holds what ---

LABELS = np.random.default_rng(0).integers(0, 10, 1000)


@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        (lambda seed: split_iid(LABELS, 7, seed), {142, 143}),
        (lambda seed: split_dirichlet(LABELS, 5, seed, alpha=0.3), None),
    ],
    ids=["iid", "dirichlet"],
)
def test_splits_are_disjoint_and_seeded(
    split: Callable[[int], list[NDArray[np.int64]]], sizes: set[int] | None
) -> None:
    parts, again, other = split(3), split(3), split(4)
    assert sorted(np.concatenate(parts)) == list(range(1000))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not np.array_equal(parts[0], other[0])
    found = {len(part) for part in parts}
    assert found == sizes or (sizes is None and len(found) > 2 and min(found) >= MIN_PARTITION)


TEXT_LABELS = np.zeros((100, LENGTH), np.int64)


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (lambda: split_iid(LABELS[:3], 4, seed=0), "use fewer nodes"),
        (lambda: split_dirichlet(LABELS[:20], 4, seed=0, alpha=1.0), "use fewer nodes"),
        (lambda: split_dirichlet(TEXT_LABELS, 3, 0, 1.0), 'at every position: use partition="iid"'),
        (lambda: node_data(Settings(), 5, 5), "partition-id=5 of num-partitions=5"),
    ],
    ids=["iid", "dirichlet", "text", "partition"],
)
def test_what_cannot_be_split(split: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        split()


def test_digits_nodes_share_nothing_and_the_test_set_is_common() -> None:
    parts = [node_data(Settings(), node, 5) for node in range(5)]
    assert sum(len(part.train.labels) for part in parts) == task_named("digits").source.train_size
    assert [len(part.test.labels) for part in parts] == [72] * 5
    labels = torch.cat([part.test.labels for part in parts])
    assert labels.bincount().min() >= 34  # stratified: 360 over ten classes
    assert parts[0].train.images.shape[1:] == (1, 8, 8)
    assert 0 <= parts[0].train.images.min() < parts[0].train.images.max() <= 1


def test_windows_of_a_text_are_split_in_pieces(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tinyshakespeare.txt"
    path.write_text(TEXT, encoding="utf-8")
    codes = torch.from_numpy(encoded(TEXT))
    for where in (tmp_path, path):
        data = task_named("gru").load(str(where))
        assert [tuple(half.images.shape) for half in data] == [(54, LENGTH), (6, LENGTH)]
        assert torch.equal(both(data, "images").flatten(), codes[: 60 * LENGTH])
        assert torch.equal(both(data, "labels").flatten(), codes[1 : 60 * LENGTH + 1])
    assert encoded("\n !~é\t\x7f😀").tolist() == [0, 1, 2, 95, *[CHARACTERS - 1] * 4]
    settings = Settings(task="gru", data_dir=str(tmp_path))
    parts = [node_data(settings, node, 3) for node in range(3)]
    assert [len(part.train.labels) for part in parts] == [18] * 3
    assert [len(part.test.labels) for part in parts] == [2] * 3


# --- training ---


def test_optimizers_and_batches() -> None:
    task, data = task_named("fcn-digits"), generated(task_named("fcn-digits"), 40, 0)
    usual = {"epochs": 1, "learning_rate": 0.01, "batch_size": 8}

    def weights(**how: Any) -> torch.Tensor:
        model = new_model(task, 0)
        train(model, data.train, shuffle=shuffler(0, 0, 1), **usual, **how)
        return model.state_dict()["1.bias"]

    adam = weights(stepper=torch.optim.Adam)
    assert torch.equal(weights(), weights(stepper=MOMENTUM))
    assert not torch.equal(adam, weights(stepper=torch.optim.RMSprop))
    assert not torch.equal(adam, weights())
    assert torch.equal(weights(batches=5), weights())
    assert not torch.equal(weights(batches=2), weights())
    # Adam's first step is the learning rate, whatever the gradient
    first = weights(stepper=torch.optim.Adam, batches=1) - new_model(task, 0).state_dict()["1.bias"]
    moved = first[first != 0]
    assert len(moved) > 30
    assert torch.allclose(moved.abs(), torch.tensor(0.01), rtol=1e-2)


def moved() -> tuple[nn.Module, list[torch.Tensor]]:
    """A model away from where it was received."""
    model = new_model(task_named("digits"), 0)
    received = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.cos(torch.arange(parameter.numel())).view_as(parameter))
    return model, received


@pytest.mark.parametrize("mu", [0.01, 1.0, 10.0])
def test_the_proximal_gradient_is_that_of_the_whole_objective(mu: float) -> None:
    model, received = moved()
    examples = generated(task_named("digits"), 64, 0).train
    loss = functional.cross_entropy(model(examples.images), examples.labels)
    pairs = list(zip(model.parameters(), received, strict=True))
    term = torch.stack([((w - anchor) ** 2).sum() for w, anchor in pairs]).sum()
    whole = torch.autograd.grad(loss + mu / 2 * term, list(model.parameters()), retain_graph=True)
    loss.backward()
    add_pull(model, received, mu)
    for parameter, gradient in zip(model.parameters(), whole, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)


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
    right = (logits.argmax(1) == data.train.labels).float().mean().item()
    batch = batch_gradient(model, data.train, batch_size=8, shuffle=shuffler(0, 0, 1))
    assert batch.examples == 8
    for score in (evaluate(model, data.train, batch_size=3), batch.score):
        assert score.loss == pytest.approx(np.mean(by_hand), rel=1e-5)
        assert score.accuracy == pytest.approx(right, abs=1e-6)


# --- gradients of a batch ---


class Buffered(nn.Module):
    """A model with all that a state may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 3)
        self.tied = self.head
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of three classes."""
        out: torch.Tensor = self.head(self.norm(x))
        return out


def some(count: int) -> Examples:
    draw = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 3, (count,), generator=draw)
    return Examples(torch.randn(count, 2, generator=draw), labels)


def test_every_array_of_the_state_has_its_place() -> None:
    torch.manual_seed(1)
    model = Buffered()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = batch_gradient(model, some(50), batch_size=8, shuffle=shuffler(0, 0, 1))
    assert found.examples == 8
    assert list(found.arrays) == list(before)
    for name, value in before.items():
        assert (found.arrays[name].shape, found.arrays[name].dtype) == (value.shape, value.dtype)
        if name != "norm.num_batches_tracked" and "running" not in name:
            assert torch.equal(model.state_dict()[name], value)  # nothing has stepped
    assert found.arrays["norm.num_batches_tracked"] == 1
    for name in ("norm.running_mean", "norm.running_var", "frozen", "unused"):
        assert not found.arrays[name].any()
    assert torch.equal(found.arrays["tied.weight"], found.arrays["head.weight"])
    for name in ("head.weight", "head.bias", "norm.weight"):
        assert found.arrays[name].any()


def test_it_is_the_mean_gradient_of_its_batch_and_of_no_other() -> None:
    examples = some(50)

    def found(partition: int, round_: int, size: int = 8) -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 3))
        shuffle = shuffler(3, partition, round_)
        return batch_gradient(model, examples, batch_size=size, shuffle=shuffle).arrays["0.weight"]

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 3))
    order = torch.randperm(50, generator=shuffler(3, 0, 1))[:8]
    share = torch.softmax(model(examples.images[order]), 1).detach()
    share[torch.arange(8), examples.labels[order]] -= 1  # of cross entropy, by hand
    assert torch.allclose(found(0, 1), share.T @ examples.images[order] / 8, atol=1e-6)
    assert torch.equal(found(0, 1), found(0, 1))
    assert not torch.equal(found(0, 1), found(0, 2))
    assert not torch.equal(found(0, 1), found(1, 1))
    whole = batch_gradient(model, examples, batch_size=999, shuffle=shuffler(3, 0, 1))
    assert whole.examples == 50
    loss = functional.cross_entropy(model(examples.images), examples.labels)
    assert whole.score.loss == pytest.approx(loss.item(), rel=1e-5)
    correct = (model(examples.images).argmax(1) == examples.labels).sum() / 50
    assert whole.score.accuracy == pytest.approx(correct.item())


# --- data sets in files ---

TEXT = "".join(chr(32 + (7 * i) % 95) if i % 31 else "\n" for i in range(80 * 60 + 7))


def write_images(path: pathlib.Path, *shape: int, **changed: NDArray[Any]) -> pathlib.Path:
    rng = np.random.default_rng(1)  # test data
    arrays = {
        f"x_{half}": rng.integers(0, 256, shape).astype(np.uint8) for half in ("train", "test")
    }
    arrays |= {f"y_{half}": np.arange(shape[0]) % 10 for half in ("train", "test")}
    np.savez(path, allow_pickle=True, **{**arrays, **changed})
    return path


def test_a_sample_in_one_file(tmp_path: pathlib.Path) -> None:
    path = write_images(tmp_path / "sample.npz", 12, 32, 32, 3)
    data = task_named("alexnet").load(str(path))
    assert [tuple(half.images.shape) for half in data] == [(12, 3, 32, 32)] * 2
    with np.load(path) as file:
        first = file["x_train"][0].transpose(2, 0, 1) / 255 * 2 - 1
        assert np.allclose(data.train.images[0].numpy(), first, atol=1e-6)
        assert data.train.labels.tolist() == file["y_train"].tolist()


def test_a_directory_may_hold_one_file(tmp_path: pathlib.Path) -> None:
    assert not FASHION_IMAGES.there(str(tmp_path))
    assert not FASHION_IMAGES.there("")
    write_images(tmp_path / "fashion-sample.npz", 9, 28, 28)
    write_images(tmp_path / "femnist.npz", 9, 28, 28)
    assert FASHION_IMAGES.there(str(tmp_path))
    for name in ("fcn", "cnn"):
        data = task_named(name).load(str(tmp_path))
        assert tuple(data.train.images.shape) == (9, 1, 28, 28)
    write_images(tmp_path / "fashion-more.npz", 9, 28, 28)
    with pytest.raises(ConfigError, match=r"fashion-more\.npz, fashion-sample\.npz; name one"):
        task_named("fcn").load(str(tmp_path))


def test_torchvisions_files_are_read_or_called_damaged(tmp_path: pathlib.Path) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    with pytest.raises(ConfigError, match="FashionMNIST/raw/ is damaged"):
        task_named("fcn").load(str(tmp_path))
    pixels = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8)
    for half in ("train", "t10k"):
        head = struct.pack(">4i", 2051, 3, 28, 28)
        (raw / f"{half}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        (raw / f"{half}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, 3) + bytes(3))
    data = task_named("fcn").load(str(tmp_path))
    assert [tuple(half.images.shape) for half in data] == [(3, 1, 28, 28)] * 2


PIXELS, ELEVEN = np.zeros((12, 28, 28), np.uint8), np.arange(12) % 11


@pytest.mark.parametrize(
    ("task", "shape", "changed", "says"),
    [
        (
            "alexnet",
            (12, 32, 32, 3),
            {"x_train": PIXELS},
            r"sample\.npz holds uint8 images of shape",
        ),
        ("alexnet", (12, 28, 28, 3), {}, r"\(28, 28, 3\), expected uint8 of \(32, 32, 3\)"),
        ("fcn", (12, 28, 28), {"y_test": np.zeros(3, np.int64)}, "and a label for each"),
        ("fcn", (12, 28, 28), {"y_train": ELEVEN}, "holds labels 0 to 10, expected 0 to 9"),
        ("fcn", (12, 28, 28), {"y_train": np.array([{}] * 12)}, r"sample\.npz cannot be read"),
    ],
    ids=["other shape", "shape", "count", "labels", "pickle"],
)
def test_images_that_are_not_the_sets(
    task: str, shape: tuple[int, ...], changed: dict[str, Any], says: str, tmp_path: pathlib.Path
) -> None:
    path = write_images(tmp_path / "sample.npz", *shape, **changed)
    with pytest.raises(ConfigError, match=says):
        task_named(task).load(str(path))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, r"and --data-dir \S+ has none: put \*\.txt into a directory and name that"),
        ({"a.txt": b"", "b.txt": b""}, r"holds a\.txt, b\.txt; name one with --data-dir"),
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
        task_named("lstm").load(str(tmp_path))


@pytest.mark.parametrize(("name", "by"), [("alexnet", "torchvision"), ("gru", "flwr-datasets")])
def test_a_data_set_is_asked_for_before_anything_starts(name: str, by: str) -> None:
    with pytest.raises(ConfigError, match=f"task='{name}' needs its data set: put .* by {by}"):
        task_named(name).source.place(name, "", download=True)


# --- what is fetched ---


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[dict[str, Any]]]:
    """Let flwr-datasets and torchvision answer with this, or fail with it; what they were asked."""

    def answers(found: Any) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def fetch(root: object = None, **how: Any) -> Any:
            asked.append({"root": root, **how})
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr("flwr_datasets.FederatedDataset", fetch)
        monkeypatch.setattr("torchvision.datasets.FashionMNIST", fetch)
        return asked

    return answers


def rows(**columns: Any) -> Any:
    from datasets import Dataset

    return SimpleNamespace(load_split={"train": Dataset.from_dict(columns)}.__getitem__)


def test_what_is_missing_is_fetched_when_asked(hub: Any, tmp_path: pathlib.Path) -> None:
    pixels = np.arange(30 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(30, 28, 28)
    asked = hub(rows(image=pixels.tolist(), character=list(range(30))))
    with pytest.raises(ConfigError, match=r"put femnist\*\.npz .* --download"):
        task_named("cnn").load(str(tmp_path))
    assert not asked
    data = task_named("cnn").load(str(tmp_path), download=True)
    assert (asked[0]["dataset"], asked[0]["cache_dir"]) == ("flwrlabs/femnist", str(tmp_path))
    assert data.test.labels.tolist() == [9, 19, 29]
    assert data.train.labels.tolist() == [i for i in range(30) if i % 10 != 9]
    expected = torch.from_numpy(pixels[9].astype(np.float32)) / 255 * 2 - 1
    assert torch.allclose(data.test.images[0, 0], expected, atol=1e-6)
    asked = hub(SimpleNamespace(data=pixels, targets=list(range(30))))
    assert len(task_named("fcn").load(str(tmp_path), download=True).test.labels) == 30
    assert asked == [{"root": tmp_path, "train": t, "download": True} for t in (True, False)]


def test_a_text_is_fetched_without_overlaps(hub: Any, tmp_path: pathlib.Path) -> None:
    text = "".join(chr(33 + i % 90) for i in range(LENGTH * 41))
    starts = range(LENGTH * 40)  # as LEAF has them: each row begins one character on
    windows = [text[i : i + LENGTH] for i in starts]
    hub(rows(x=windows, y=[text[i + LENGTH] for i in starts]))
    data = task_named("lstm").load(str(tmp_path), download=True)
    codes = torch.from_numpy(encoded(text))
    assert torch.equal(both(data, "images").flatten(), codes[: 40 * LENGTH])
    assert torch.equal(both(data, "labels").flatten(), codes[1 : 40 * LENGTH + 1])
    assert [len(half.labels) for half in data] == [36, 4]
    hub(rows(x=["short"], y=["x"]))
    with pytest.raises(ConfigError, match="does not hold windows of 80 characters"):
        task_named("lstm").load(str(tmp_path), download=True)


@pytest.mark.parametrize("name", ["fcn", "gru"])
def test_what_cannot_be_fetched(name: str, hub: Any, tmp_path: pathlib.Path) -> None:
    hub(ConnectionError("no route"))
    with pytest.raises(ConfigError, match=r"not be fetched \(Conn|cannot be fetched \(Conn"):
        task_named(name).load(str(tmp_path), download=True)


@pytest.mark.parametrize("name", ["fcn-digits", "cnn-digits"])
def test_enlarged_digits(name: str) -> None:
    task, small = task_named(name), task_named("digits").load("")
    task.source.place(name, "")
    assert task.source.there("")
    data = task.load("")
    assert tuple(data.train.images.shape) == (task.source.train_size, 1, 28, 28)
    assert torch.equal(data.train.labels, small.train.labels)
    assert -1 <= data.train.images.min() < data.train.images.max() <= 1
    enlarged = functional.interpolate(small.test.images, size=28, mode="bilinear")
    assert torch.allclose(data.test.images, 2 * enlarged - 1)
