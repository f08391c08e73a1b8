"""The rules of reliable fetch that need no server."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cogworkerd.store.keys import Keys
from cogworkerd.worker.fetch import QueueOrder

KEYS = Keys("shop")
WEIGHTED = (("often", 6), ("rare", 1), ("some", 3))
DRAWS = 20_000


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(34)


def test_r34_each_order_has_every_queue_once_with_its_key() -> None:
    order = QueueOrder(WEIGHTED, KEYS, strict=False)
    for _ in range(100):
        names, keys = order.draw()
        assert sorted(names) == ["often", "rare", "some"]
        assert keys == [KEYS.queue(name) for name in names]


def test_r34_a_queue_stands_first_as_often_as_its_weight_says() -> None:
    order = QueueOrder(WEIGHTED, KEYS, strict=False)
    first = Counter(order.draw()[0][0] for _ in range(DRAWS))
    for name, weight in WEIGHTED:
        assert first[name] / DRAWS == pytest.approx(weight / 10, abs=0.02)


def test_r34_behind_the_first_the_weights_of_the_others_count() -> None:
    """As by drawing lots without putting them back: the light queue is not always last."""
    order = QueueOrder(WEIGHTED, KEYS, strict=False)
    drawn = Counter(tuple(order.draw()[0]) for _ in range(DRAWS))
    assert len(drawn) == 6
    assert drawn["often", "some", "rare"] / DRAWS == pytest.approx(0.6 * 3 / 4, abs=0.02)
    assert drawn["often", "rare", "some"] / DRAWS == pytest.approx(0.6 * 1 / 4, abs=0.02)


def test_r34_equal_weights_are_shuffled_evenly() -> None:
    order = QueueOrder((("a", 1), ("b", 1)), KEYS, strict=False)
    first = Counter(order.draw()[0][0] for _ in range(DRAWS))
    assert first["a"] / DRAWS == pytest.approx(0.5, abs=0.02)


def test_r34_a_strict_order_is_always_the_one_that_was_given() -> None:
    order = QueueOrder(WEIGHTED, KEYS, strict=True)
    assert {tuple(order.draw()[0]) for _ in range(100)} == {("often", "rare", "some")}
