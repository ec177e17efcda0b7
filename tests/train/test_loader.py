"""The loader: sharding, shuffling, equal numbers of steps, seeds, and going on in the middle of an epoch."""

from __future__ import annotations

from itertools import chain, islice, zip_longest
from multiprocessing import active_children
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from rankwise.errors import UsageError
from rankwise.train import Predictions, Step
from rankwise.train.loader import Loader
from tests.train.farm import Farm
from tests.train.jobs import Stream


def merged(ranks: list[list[list[int]]]) -> list[int]:
    """The samples of an epoch in the order one process would have taken them."""
    steps = zip_longest(*ranks)
    return list(chain.from_iterable(chain.from_iterable(steps)))


@pytest.mark.parametrize("stream", [False, True], ids=["map-style", "stream"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_sample_comes_once_and_every_rank_takes_as_many_steps(farm: Farm, world_size: int, stream: bool) -> None:
    epochs = farm.run("read_epochs", world_size, length=17, batch_size=4, stream=stream)

    ranks = [epoch[0] for epoch in epochs]
    assert merged(ranks) == list(range(17))
    assert len({len(batches) for batches in ranks}) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["map-style", "stream"])
@pytest.mark.parametrize(("uneven", "expected"), [("pad", [*range(10), 0, 1]), ("drop", [*range(8)])])
def test_what_is_uneven_is_padded_or_dropped_when_asked(farm: Farm, uneven: str, expected: list[int], stream: bool) -> None:
    epochs = farm.run("read_epochs", 4, length=10, batch_size=2, uneven=uneven, stream=stream)

    assert merged([epoch[0] for epoch in epochs]) == expected


def test_a_rank_with_nothing_left_gets_an_empty_batch(farm: Farm) -> None:
    epochs = farm.run("read_epochs", 3, length=7, batch_size=2)

    assert [epoch[0][-1] for epoch in epochs] == [[6], [], []]


def test_each_epoch_has_another_order_that_all_ranks_agree_on(farm: Farm) -> None:
    ranks = farm.run("read_epochs", 2, length=20, batch_size=5, num_epochs=3, shuffle=True)

    orders = [merged([rank[epoch] for rank in ranks]) for epoch in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_an_epoch_left_by_break_is_followed_by_another_order(farm: Farm) -> None:
    first = farm.alone("read_with_breaks", num_epochs=4)

    assert len({tuple(batch) for batch in first}) == 4


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stream", [False, True], ids=["map-style", "stream"])
def test_a_half_read_epoch_goes_on_with_other_ranks_and_other_batches(farm: Farm, stream: bool, num_workers: int) -> None:
    common: dict[str, Any] = {"length": 23, "stream": stream, "num_workers": num_workers, "shuffle": not stream}
    before = farm.run("read_some_then_say_where", 2, num_batches=2, batch_size=3, **common)

    after = farm.run("go_on_reading", 3, state=before[0][1], num_epochs=2, batch_size=2, **common)

    first = merged([read for read, _ in before])
    rest, next_epoch = (merged([rank[epoch] for rank in after]) for epoch in range(2))
    assert len(first) == 12
    assert sorted(first + rest) == list(range(23))
    assert sorted(next_epoch) == list(range(23))
    assert (next_epoch == first + rest) == stream


def test_no_two_workers_of_any_rank_draw_the_same_numbers_in_any_epoch(farm: Farm) -> None:
    ranks = farm.run("draws_of_workers", 2)

    drawn = [number for rank in ranks for sample in rank for number in sample]
    assert len(drawn) == 2 * 2 * 4 * 3
    assert len(set(drawn)) == len(drawn)
    assert farm.run("draws_of_workers", 2) == ranks, "and the same ones when the job is started again"


def test_no_two_workers_of_any_rank_seed_generators_of_their_own_alike_in_any_epoch(farm: Farm) -> None:
    seeds = [seed for rank in farm.run("seeds_of_workers", 2) for epoch in rank for seed in epoch]

    assert len(set(seeds)) == len(seeds) == 2 * 2 * 2


@pytest.mark.parametrize(
    ("name", "value", "said"), [("length", 21, "samples = 21"), ("batch_size", 3, "samples in a step"), ("seed", 5, "seed")]
)
def test_ranks_that_cut_differently_are_told(farm: Farm, name: str, value: int, said: str) -> None:
    outcomes = farm.ranks("loader_on_ranks_that_disagree", 2, name=name, value=value)

    assert {outcome.code for outcome in outcomes} == {"RW703"}
    assert all(said in outcome.error and "rank 1" in outcome.error for outcome in outcomes)


def test_a_split_that_each_rank_draws_for_itself_is_told(farm: Farm) -> None:
    outcomes = farm.ranks("loader_of_a_random_split", 2, seeds=[0, 1])
    farm.run("loader_of_a_random_split", 2, seeds=[3, 3])

    assert {outcome.code for outcome in outcomes} == {"RW703"}


def test_a_position_in_another_dataset_is_refused(farm: Farm) -> None:
    _, state = farm.alone("read_some_then_say_where", num_batches=1, length=20, batch_size=2)

    outcome = farm.ranks("go_on_reading", 0, state=state, num_epochs=1, length=19, batch_size=2)[0]

    assert outcome.code == "RW703"
    assert "20 then, 19 now" in outcome.error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "batch_size"),
        ({"batch_size": 2, "global_batch_size": 4}, "one of them"),
        ({"batch_size": 0}, "at least one sample"),
        ({"batch_size": "4"}, "batch_size='4'"),
        ({"batch_size": 2, "uneven": "maybe"}, "maybe"),
        ({"batch_size": 2, "sampler": None}, "sampler"),
        ({"batch_size": 2, "num_workers": 2, "in_order": False}, "in_order=False"),
        ({"batch_size": 2, "stream": True, "shuffle": True}, "shuffled"),
        ({"batch_size": 2, "stream": True, "num_workers": 1, "persistent_workers": True}, "persistent_workers"),
        ({"batch_size": 99, "uneven": "drop"}, "leaves nothing"),
    ],
)
def test_wrong_options_are_refused_in_plain_words(farm: Farm, options: dict[str, Any], said: str) -> None:
    outcome = farm.ranks("read_epochs", 0, length=20, **options)[0]

    assert outcome.code == "RW001"
    assert said in outcome.error


@pytest.mark.parametrize("dataset", [DataLoader(range(2)), (number for number in range(2)), Dataset()])
def test_what_is_no_dataset_is_refused(dataset: Any) -> None:
    with pytest.raises(UsageError, match=r"without samples by number[\s\S]*step\.over"):
        Loader(dataset, batch_size=1)


def test_looking_at_one_batch_uses_nothing_up_of_what_is_resumed() -> None:
    loader = Loader(range(20), batch_size=2)  # type: ignore[arg-type]
    loader.load_state_dict({"epoch": 0, "done": 8, "seed": 0, "length": 20, "shuffle": False})

    assert next(iter(loader)).tolist() == [8, 9]
    assert loader.state_dict()["done"] == 10
    read = []
    for batch in loader:
        read += batch.tolist()
        assert next(iter(loader)) is not None  # as somebody does in the loop, for a look at the data
        assert len(read) > 2 or loader.state_dict()["epoch"] == 0
    assert read == list(range(8, 20))
    assert loader.state_dict() == {"epoch": 1, "done": 0, "seed": 0, "length": 20, "shuffle": False}


def test_a_loader_of_another_world_is_refused(farm: Farm) -> None:
    outcomes = farm.ranks("loader_made_before_the_group", 2)

    assert [outcome.code for outcome in outcomes] == ["RW001", "RW001"]
    assert "1 rank(s), and now there are 2" in outcomes[1].error


def test_loops_over_a_loader_inside_of_a_loop_over_it_change_neither_its_samples_nor_its_place() -> None:
    loader, other = (Loader(range(24), batch_size=2, shuffle=True) for _ in range(2))  # type: ignore[arg-type]
    read, places = [], []
    for number, batch in enumerate(loader):
        read.append(batch.tolist())
        if number in (1, 3):
            list(loader)
            list(loader)
        else:
            places.append((loader.state_dict()["epoch"], loader.state_dict()["done"]))

    assert read == [batch.tolist() for batch in other]
    assert places == [(0, 2 * number + 2) for number in range(12) if number not in (1, 3)]


def test_what_is_read_inside_of_a_loop_moves_no_checkpoint() -> None:
    loader = Loader(range(24), batch_size=2, shuffle=True)  # type: ignore[arg-type]
    places = []
    for epoch in loader.epochs(2):
        for number, _ in enumerate(loader, 1):
            if number in (1, 4):
                list(loader)
            elif number > 1:
                next(iter(loader))
            places.append((loader.state_dict()["epoch"] - epoch, loader.state_dict()["done"]))
        assert (loader.state_dict()["epoch"], loader.state_dict()["done"]) == (epoch + 1, 0)

    assert places == 2 * [(0, 2 * number) for number in range(1, 13)]


def test_both_loaders_of_a_zip_have_another_order_in_every_epoch() -> None:
    one, other = (Loader(range(24), batch_size=2, shuffle=True) for _ in range(2))  # type: ignore[arg-type]

    for _ in range(3):
        assert all(left.tolist() == right.tolist() for left, right in zip(one, other))
    assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize("num_batches", [3, 13])
def test_reading_again_after_an_epoch_is_not_what_a_checkpoint_goes_on_with(num_batches: int) -> None:
    loader = Loader(range(24), batch_size=2, shuffle=True)  # type: ignore[arg-type]
    places = []
    for _ in loader.epochs(2):
        list(loader)
        list(islice(loader, num_batches))  # how well the model knows what it was trained on
        places.append((loader.state_dict()["epoch"], loader.state_dict()["done"]))

    assert places == [(1, 0), (2, 0)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_that_shuffles_gives_each_sample_once_also_after_resuming(farm: Farm, num_workers: int) -> None:
    common = {"length": 23, "num_workers": num_workers, "shuffled": True, "stream": True}
    before = farm.run("read_some_then_say_where", 2, num_batches=2, batch_size=3, **common)

    after = farm.run("go_on_reading", 3, state=before[0][1], num_epochs=2, batch_size=2, **common)

    first = merged([read for read, _ in before])
    rest, next_epoch = (merged([rank[epoch] for rank in after]) for epoch in range(2))
    assert sorted(first + rest) == sorted(next_epoch) == list(range(23))
    assert next_epoch != first + rest != list(range(23))


@pytest.mark.parametrize("is_in_turn", [False, True])
def test_the_place_is_that_of_the_loop_that_trains(is_in_turn: bool) -> None:
    loader = Loader(torch.arange(24.0).reshape(12, 2), batch_size=2, shuffle=True)  # type: ignore[arg-type]
    model = nn.Linear(2, 1)
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    places = []

    def train_an_epoch() -> None:
        look = iter(loader)
        next(look)
        for x in step.over(loader):
            step.backward(model(x).sum())
            for number, _ in enumerate(loader):
                places.append((loader.state_dict()["epoch"], loader.state_dict()["done"]))
                if number == step.count:
                    break
            places.append((loader.state_dict()["epoch"], loader.state_dict()["done"]))

    if is_in_turn:
        for _ in loader.epochs(1):
            train_an_epoch()
    else:
        train_an_epoch()

    assert list(dict.fromkeys(places)) == [(0, 2 * number) for number in range(1, 7)]


def test_the_place_after_a_break_is_not_that_of_a_loop_inside() -> None:
    loader = Loader(range(24), batch_size=2)  # type: ignore[arg-type]
    for number, _ in enumerate(loader):
        if number == 5:
            list(islice(loader, 2))
            break

    assert (loader.state_dict()["epoch"], loader.state_dict()["done"]) == (0, 12)


def test_loops_inside_of_one_whose_workers_persist_take_none_of_its_samples() -> None:
    loader = Loader(range(12), batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context="fork")  # type: ignore[arg-type]
    read = []
    for number, batch in enumerate(loader):
        read += batch.tolist()
        if number in (1, 3):
            assert [y.tolist() for y in islice(loader, 5 * number)][:2] == [[0, 1], [2, 3]]

    assert read == list(range(12))
    del loader, batch
    assert not active_children(), "they end with the loader"


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_dataset_that_changes_between_epochs_is_read_as_it_is_then(shuffle: bool) -> None:
    data = list(range(6))
    loader = Loader(data, batch_size=2, shuffle=shuffle)  # type: ignore[arg-type]
    for epoch in loader.epochs(3):
        data[:] = range(6 + 3 * epoch if epoch < 2 else 3)
        predictions = Predictions(loader)
        assert len(loader) == (3, 5, 2)[epoch]
        for batch in loader:
            predictions.add(batch)
        assert predictions.gather().tolist() == data


def test_a_stream_that_was_already_split_is_refused() -> None:
    stream: Any = Stream(range(6))  # type: ignore[arg-type]
    stream._distributed = SimpleNamespace(rank=0, world_size=2)  # as Hugging Face's split_dataset_by_node leaves it

    with pytest.raises(UsageError, match="already split by node"):
        Loader(stream, batch_size=2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_default_device_is_no_concern_of_the_loaders(num_workers: int) -> None:
    """The generators of orders and seeds are the CPU's, also under torch.set_default_device("cuda"); "meta" stands for it here."""
    data = TensorDataset(torch.arange(10))
    with torch.device("meta"):
        read = [batch for (batch,) in Loader(data, batch_size=4, shuffle=True, num_workers=num_workers)]

    assert sorted(torch.cat(read).tolist()) == list(range(10))
