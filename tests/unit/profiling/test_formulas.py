"""Which formula holds for a module or an operator, and what a module may declare itself."""

from __future__ import annotations

from typing import Any

import pytest

import sweeprof
from sweeprof.counting import formulas
from sweeprof.counting.formulas import Cost, Formula, Formulas


class Layer:
    """Any class serves as a module here."""


class Derived(Layer):
    pass


class Declares(Layer):
    def compute_module_complexity(self, inputs: Any, outputs: Any) -> Any:
        return {"flops": inputs + outputs, "param_size": {"weight": 0.25}}


class Below(Declares):
    pass


def giving(macs: int) -> Formula:
    return lambda module, inputs, outputs: Cost(macs=macs)


def macs_of(found: Formula | None) -> int | None:
    return None if found is None else found(None, None, None).macs


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch) -> Formulas:
    """Defaults of the test's own."""
    own = Formulas()
    monkeypatch.setattr(formulas, "DEFAULTS", own)
    return own


OUTER = Formulas({Layer: giving(1), "mylib::op": giving(2), "mylib::other": giving(3)})
INNER = Formulas({Layer: giving(10), "mylib::op": giving(20)}, OUTER)


@pytest.mark.parametrize(
    ("known", "of", "macs"),
    [
        (Formulas(), "mylib::op", None),
        (Formulas({Layer: giving(1)}), Derived(), 1),
        pytest.param(Formulas({Layer: giving(1), Derived: giving(2)}), Derived(), 2, id="the nearest type"),
        (Formulas({Layer: giving(1), Derived: giving(2)}), Layer(), 1),
        (Formulas({"mylib::op": giving(3)}), "mylib::other", None),
        pytest.param(INNER, Layer(), 10, id="an inner set is asked first"),
        (INNER, "mylib::op", 20),
        (INNER, "mylib::other", 3),
        pytest.param(OUTER, Layer(), 1, id="which leaves the outer alone"),
        pytest.param(
            *(Formulas({Layer: giving(1)}, Formulas({Derived: giving(2)})), Derived(), 2),
            id="a nearer type of the outer set comes before a farther one of the inner",
        ),
    ],
)
def test_of_a_type_and_of_its_subclasses(known: Formulas, of: Any, macs: int | None) -> None:
    assert macs_of(known.of_operator(of) if isinstance(of, str) else known.of_module(of)) == macs


@pytest.mark.parametrize("key", ["op", None, Layer()])
def test_what_no_formula_can_be_for(key: Any) -> None:
    with pytest.raises(TypeError, match="a formula is for a module type or an operator 'namespace::name'"):
        Formulas({key: giving(1)})


def test_the_nearest_of_formula_and_declaration_is_taken() -> None:
    assert macs_of(Formulas({Below: giving(1)}).of_module(Below())) == 1
    assert macs_of(Formulas({Declares: giving(1)}).of_module(Declares())) == 1
    above = Formulas({Layer: giving(1)}).of_module(Below())
    assert above is not None
    assert above(Below(), 3, 4) == Cost(flops=7, param_size={"weight": 0.25})


@pytest.mark.parametrize("said", [None, {"macs": 3}, {"flops": 1, "wings": 2}, Cost(flops=3)])
def test_declarations_that_say_nothing(said: Any) -> None:
    class Wrong:
        def compute_module_complexity(self, inputs: Any, outputs: Any) -> Any:
            return said

    found = Formulas().of_module(Wrong())
    assert found is not None
    with pytest.raises(
        TypeError, match=r"Wrong\.compute_module_complexity must return a mapping with 'flops' and any of macs"
    ):
        found(Wrong(), 1, 2)


def test_for_every_model(defaults: Formulas) -> None:
    @sweeprof.module_formula(Layer)
    def of_layer(module: Any, inputs: Any, outputs: Any) -> Cost:
        return Cost(macs=5)

    @sweeprof.operator_formula("mylib::op")
    def of_operator(args: Any, kwargs: Any, output: Any) -> Cost:
        return Cost(macs=6)

    assert of_layer(None, None, None).macs == 5  # still a function
    assert macs_of(defaults.of_module(Derived())) == 5
    assert macs_of(defaults.of_operator("mylib::op")) == 6
    assert of_operator(None, None, None).macs == 6
