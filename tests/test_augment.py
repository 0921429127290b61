"""Augmentation of batches: what it does to a picture, how often, and that nothing but the position decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from darkroom.training import Augmentation
from darkroom.training.augment import Normalizer, augmented, cropped, erased, flipped, mixed, resized_crop
from darkroom.training.batches import Batches, Cut
from darkroom.training.draws import Draw, draw
from darkroom.training.order import Order
from sessions import digits

NUM = 4000
EVERYTHING = Augmentation(crop_padding=2, flip=True, erasing=0.5, mixup=0.3, cutmix=0.5)


def drawn(num: int = NUM, size: int = 8, **settings: float | bool) -> Draw:
    return draw(Augmentation(**settings), np.random.default_rng(0), num, size)  # type: ignore[arg-type]  # fields of any kind


def numbered(num: int, size: int = 6, channels: int = 3) -> Tensor:
    """uint8 N×H×W×C whose values tell places apart."""
    return torch.arange(num * size * size * channels).remainder(251).to(torch.uint8).view(num, size, size, channels)


@pytest.mark.parametrize("channels", [1, 3])
def test_crop_and_flip_are_the_plain_crop_and_flip_of_each_picture(channels: int) -> None:
    images = numbered(50, channels=channels)
    chosen = drawn(50, crop_padding=2, flip=True)
    assert chosen.shift is not None
    assert chosen.flip is not None
    result = cropped(flipped(images.clone(), chosen.flip), chosen.shift, padding=2)
    padded = np.pad(images.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)))
    for row, (top, left) in enumerate(chosen.shift):
        picture = padded[row, :, ::-1] if chosen.flip[row] else padded[row]
        assert np.array_equal(result[row].numpy(), picture[top : top + 6, left : left + 6])


def test_flip_alone_and_crop_alone() -> None:
    images = numbered(20)
    flip = np.arange(20) % 2 == 0
    mirrored = flipped(images.clone(), flip)
    assert torch.equal(mirrored[0], images[0].flip(1))
    assert torch.equal(mirrored[1], images[1])
    assert torch.equal(flipped(images.clone(), np.zeros(20, bool)), images)
    centre = np.full((20, 2), 3)
    assert torch.equal(cropped(images, centre, padding=3), images)


def test_half_are_flipped_and_crop_offsets_are_uniform() -> None:
    chosen = drawn(crop_padding=2, flip=True)
    assert chosen.flip is not None
    assert chosen.shift is not None
    assert abs(chosen.flip.mean() - 0.5) < 4 * 0.5 / NUM**0.5
    for axis in range(2):
        counts = np.bincount(chosen.shift[:, axis], minlength=5)
        assert len(counts) == 5
        assert ((counts - NUM / 5) ** 2 / (NUM / 5)).sum() < 18.5  # chi-squared, 4 degrees of freedom, p = 0.001


def test_random_resized_crop_keeps_the_areas_that_torchvision_keeps() -> None:
    from torchvision.transforms import RandomResizedCrop

    boxes = drawn(random_resized_crop=0.2, size=64).crop
    assert boxes is not None
    ours = boxes[:, 2] * boxes[:, 3] / 64**2
    torch.manual_seed(0)
    picture = torch.zeros(1, 64, 64)
    theirs = np.array([RandomResizedCrop.get_params(picture, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(NUM)])
    theirs_areas = theirs[:, 2] * theirs[:, 3] / 64**2
    assert ours.min() > 0.19
    assert np.allclose(np.quantile(ours, [0.1, 0.5, 0.9]), np.quantile(theirs_areas, [0.1, 0.5, 0.9]), atol=0.03)
    assert ((boxes[:, :2] >= 0) & (boxes[:, :2] + boxes[:, 2:] <= 64)).all()
    assert abs(boxes[:, 0].mean() - theirs[:, 0].mean()) < 0.7


def test_resized_crop_is_bilinear_resizing_of_the_box() -> None:
    pictures = torch.rand(3, 3, 16, 16)
    boxes = np.array([[0, 0, 16, 16], [4, 2, 8, 8], [8, 8, 8, 8]])
    result = resized_crop(pictures, boxes)
    torch.testing.assert_close(result[0], pictures[0], atol=1e-5, rtol=0)
    for row, (top, left, height, width) in enumerate(boxes[1:], start=1):
        box = pictures[row : row + 1, :, top : top + height, left : left + width]
        plain = torch.nn.functional.interpolate(box, size=(16, 16), mode="bilinear", align_corners=False)[0]
        # a pixel at the box's edge may look beyond it here
        torch.testing.assert_close(result[row, :, 1:-1, 1:-1], plain[:, 1:-1, 1:-1], atol=1e-5, rtol=0)


def test_erasing_takes_one_rectangle_of_the_asked_share_of_pictures() -> None:
    boxes = drawn(erasing=0.25, size=32).erase
    assert boxes is not None
    erasing = boxes[:, 2] > 0
    assert abs(erasing.mean() - 0.25) < 0.03
    areas = (boxes[:, 2] * boxes[:, 3])[erasing] / 32**2
    assert areas.min() > 0.015
    assert areas.max() < 0.35
    result = erased(torch.ones(NUM, 1, 32, 32), boxes)
    assert torch.equal((result == 0).sum((1, 2, 3)), torch.from_numpy(boxes[:, 2] * boxes[:, 3] * erasing))


def test_mixup_is_the_weighted_mean_and_cutmix_a_patch() -> None:
    pictures, others = torch.zeros(4, 1, 8, 8), torch.ones(4, 1, 8, 8)
    up = drawn(4, mixup=0.4)
    assert up.share is not None
    assert up.patch is None
    torch.testing.assert_close(mixed(pictures, others, up), others * (1 - float(up.share[0])))
    cut = drawn(4, cutmix=1.0)
    assert cut.share is not None
    result = mixed(pictures, others, cut)
    assert set(result.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(result.mean((1, 2, 3)), 1 - torch.from_numpy(cut.share))


def test_shares_follow_the_beta_distribution_and_partners_are_all_pictures() -> None:
    shares = []
    for seed in range(400):
        chosen = draw(Augmentation(mixup=0.5), np.random.default_rng(seed), 16, 8)
        assert chosen.share is not None
        assert chosen.partner is not None
        assert sorted(chosen.partner.tolist()) == list(range(16))
        shares.append(float(chosen.share[0]))
    assert abs(np.mean(shares) - 0.5) < 0.06
    assert abs(np.var(shares) - 0.125) < 0.02  # of Beta(0.5, 0.5)


def test_mixup_and_cutmix_together_take_turns() -> None:
    kinds = [draw(EVERYTHING, np.random.default_rng(seed), 4, 8).patch is None for seed in range(200)]
    assert 70 < sum(kinds) < 130


def test_normaliser_is_the_formula_of_the_saved_model() -> None:
    from darkroom.models.saved import Normalize

    images = numbered(5)
    mean, std = [0.1, 0.5, 0.7], [0.2, 0.3, 0.4]
    ours = Normalizer(mean, std, 6, torch.device("cpu"))(images)
    torch.testing.assert_close(ours, Normalize(mean, std)(images.permute(0, 3, 1, 2)), atol=1e-6, rtol=1e-6)
    assert ours.is_contiguous(memory_format=torch.channels_last)


def batches(augmentation: Augmentation, *, seed: int = 0) -> Batches:
    normalize = Normalizer([0.3], [0.35], 8, torch.device("cpu"))
    order = Order(100, 32, seed)
    return Batches(digits(0, 100), order, augmentation, normalize, torch.device("cpu"), channels_last=True)


def everything() -> list[Augmentation]:
    return [
        EVERYTHING,
        Augmentation(random_resized_crop=0.3, flip=True, cutmix=0.5),
        Augmentation(trivial_augment=True, mixup=0.5),
    ]


@pytest.mark.parametrize("augmentation", everything())
def test_a_batch_is_a_function_of_its_position(augmentation: Augmentation) -> None:
    first, again = batches(augmentation), batches(augmentation)
    list_of_batches = [first.load(first.cut(epoch, step), slice(None)) for epoch in (0, 1) for step in range(4)]
    torch.manual_seed(12345)  # whatever else happened
    late = again.load(again.cut(1, 2), slice(None))
    assert torch.equal(late.images, list_of_batches[6].images)
    assert torch.equal(late.labels, list_of_batches[6].labels)
    means = {float(batch.images.double().mean()) for batch in list_of_batches}
    assert len(means) == 8
    other_seed = batches(augmentation, seed=1)
    assert not torch.equal(other_seed.load(other_seed.cut(1, 2), slice(None)).images, late.images)


@pytest.mark.parametrize("augmentation", everything())
def test_micro_batches_are_slices_of_the_whole_step(augmentation: Augmentation) -> None:
    source = batches(augmentation)
    cut = source.cut(0, 1)
    whole = source.load(cut, slice(None))
    parts = [source.load(cut, rows) for rows in (slice(0, 11), slice(11, 22), slice(22, 32))]
    torch.testing.assert_close(torch.cat([part.images for part in parts]), whole.images, atol=1e-6, rtol=0)
    assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)
    assert whole.other_labels is not None
    assert torch.equal(torch.cat([p.other_labels for p in parts if p.other_labels is not None]), whole.other_labels)


def test_trivial_augment_changes_pictures_and_keeps_their_shape_and_range() -> None:
    chosen = drawn(64, trivial_augment=True)
    normalize = Normalizer([0.0], [1.0], 8, torch.device("cpu"))
    images = torch.from_numpy(digits(0, 64).images)
    changed = augmented(images, chosen, 0, normalize)
    plain = normalize(images)
    assert changed.shape == plain.shape == (64, 1, 8, 8)
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    same = [torch.equal(one, other) for one, other in zip(changed, plain, strict=True)]
    assert 1 <= sum(same) < 40


def test_nothing_is_changed_where_nothing_is_asked() -> None:
    source = batches(Augmentation())
    cut = source.cut(0, 0)
    assert vars(cut.draw) == dict.fromkeys(vars(Draw()))
    batch = source.load(cut, slice(None))
    expected = (digits(0, 100).images[cut.indices] / 255 - 0.3) / 0.35
    torch.testing.assert_close(batch.images, torch.from_numpy(expected).float().permute(0, 3, 1, 2))
    assert batch.other_labels is None


def test_an_epoch_takes_every_picture_once_and_keeps_the_short_batch() -> None:
    source = batches(Augmentation())
    cuts: list[Cut] = [source.cut(3, step) for step in range(source.order.steps)]
    assert [len(cut) for cut in cuts] == [32, 32, 32, 4]
    assert sorted(np.concatenate([cut.indices for cut in cuts]).tolist()) == list(range(100))
    assert not np.array_equal(source.cut(4, 0).indices, cuts[0].indices)


@pytest.mark.parametrize(
    ("num", "batch_size", "sizes"),
    [(33, 32, [33]), (65, 32, [32, 33]), (64, 32, [32, 32]), (5, 32, [5]), (1, 32, [1]), (3, 1, [1, 1, 1])],
)
def test_a_last_single_picture_joins_the_batch_before(num: int, batch_size: int, sizes: list[int]) -> None:
    order = Order(num, batch_size, 0)
    indices = np.arange(num)
    assert [len(indices[order.rows(step)]) for step in range(order.steps)] == sizes
