"""What a key says, word by word."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.weights.state_dicts import find_state_dicts, is_averaged_key, is_training_key, words_of
from rankwise.weights.tensor_records import Content, Extent, TensorRecord


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("optimizerG_state-dict", ("optimizer", "g", "state", "dict")),
        ("ModelEMA", ("model", "ema")),
        ("EMAModel2", ("ema", "model", "2")),
        (0, ("0",)),
    ],
)
def test_words(key: object, words: tuple[str, ...]) -> None:
    assert words_of(key) == words


@pytest.mark.parametrize(
    "key",
    [
        "optimizer", "optimizer_states", "optimizerG", "g_optim", "opt_state", "lr_schedulers", "LRScheduler", "grad_scaler", "rng_state",
        "random_state", "grads", "gradients", "momentum", "momentum_buffer", "momentum_buffer_state_dict", "first_moment", "adam_m",
        "exp_avg", "exp_avg_sq", "velocity", "last_optimizer_state", "mask", "pruning_masks", "fisher", "fisher_diag", "hessian", "delta",
        "weight_deltas_state_dict", "importance", "task_vector",
    ],
)  # fmt: skip
def test_training_state(key: str) -> None:
    assert is_training_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "optimal_weights", "scheduled_net", "stranger", "string_net", "gradual", "model", "state", "momentum_encoder", "opticalflow",
        "moment_head", "encoder", "exp", "m", "callbacks", "graded", "rescaler_net", "adapter",
        "mask_decoder", "masked_lm", "delta_net", "fisher_net",
    ],
)  # fmt: skip
def test_what_only_sounds_like_it(key: str) -> None:
    assert not is_training_key(key)


@pytest.mark.parametrize("key", ["ema", "model_ema", "ModelEMA", "swa_model", "avg", "shadow_params"])
def test_averages(key: str) -> None:
    assert is_averaged_key(key)


@pytest.mark.parametrize("key", ["semantic", "schema", "teacher", "swarm", "remained"])
def test_what_is_no_average(key: str) -> None:
    assert not is_averaged_key(key)


def test_an_optimizer_of_very_many_parameters_is_no_damage() -> None:
    moment = TensorRecord("float32", (1,), Extent(Path("x"), 0, 4), 0, (1,))
    moments = {index: {"step": moment, "exp_avg": moment} for index in range(40_000)}
    tree = {"model": {"weight": moment}, "optimizer": {"state": moments, "param_groups": []}}

    assert find_state_dicts(Content("torch zip", tree, (Path("x"),)))[0].label == "model"
