"""An optimizer that holds other parameters than the model: proven by what had gradients at its first steps."""

from __future__ import annotations

import pytest

from rankwise.diagnose.silent.held_elsewhere import find
from rankwise.evidence.audit import Audit, OptimizerSeen
from tests.diagnose.silent.audits import DDP, audited, lines, row, step

STALE = OptimizerSeen(0, 20, 8, held=4, of_model=0, with_grad=0, model_with_grad=4)
OF_MODEL = OptimizerSeen(1, 21, 9, held=4, of_model=4, with_grad=4, model_with_grad=4)


def test_an_optimizer_of_another_copy_of_the_model_is_found_where_it_was_built() -> None:
    found = find(audited(Audit(wrappers=(DDP,), optimizers=(STALE,)), Audit(wrappers=(DDP,), optimizers=(OF_MODEL,))))

    assert (found.code, found.severity, found.certain) == ("RW702", "warning", True)
    assert "none of its 4 is a parameter of the wrapped model" in found.summary
    assert lines(found) == {0: 8}


@pytest.mark.parametrize(
    "audit",
    [
        Audit(wrappers=(DDP,), optimizers=(OF_MODEL,)),
        Audit(wrappers=(DDP,), optimizers=(STALE, OF_MODEL)),
        Audit(optimizers=(STALE,)),
        Audit(wrappers=(DDP,), optimizers=(OptimizerSeen(0, 20, 8, held=4, of_model=0, with_grad=4, model_with_grad=4),)),
        Audit(wrappers=(DDP,), optimizers=(OptimizerSeen(0, 20, 8, held=4, of_model=0, with_grad=0, model_with_grad=0),)),
        Audit(wrappers=(DDP,), optimizers=(OptimizerSeen(0, 20, 8, held=0, of_model=0, with_grad=0, model_with_grad=4),)),
    ],
    ids=[
        "its own",
        "another optimizer holds them",
        "nothing is wrapped",
        "a second model that learns",
        "the model gets none",
        "it is empty",
    ],
)
def test_what_an_optimizer_may_hold(audit: Audit) -> None:
    assert find(audited(audit, audit)) is None


def replaced(n: int = 4, unheld: tuple[str, ...] = ("head",), foreign: int = 1, i: int = 0) -> Audit:
    return Audit(optimizers=(OF_MODEL,), steps=(step(n, row(), i=i, unheld=unheld, foreign=foreign),))


def test_a_layer_replaced_after_the_optimizer_was_built_is_found() -> None:
    found = find(audited(replaced(i=1)))

    assert (found.code, found.severity, found.certain) == ("RW702", "warning", True)
    assert "does not hold parameter head" in found.summary and lines(found) == {0: 9}


@pytest.mark.parametrize(
    "audit", [replaced(n=3), replaced(unheld=()), replaced(foreign=0)], ids=["not its final form", "all held", "no old one"]
)
def test_what_is_no_replaced_layer(audit: Audit) -> None:
    assert find(audited(audit)) is None


def test_a_parameter_that_a_second_optimizer_holds_is_held() -> None:
    both = Audit(steps=(*replaced(unheld=("head",)).steps, *replaced(unheld=("body",), i=1).steps))

    assert find(audited(both)) is None
