"""Records would not compare, hash or print as Python programmers expect.

autolayers.records makes classes that behave as `dataclasses` would have made them.
"""

import dataclasses

import pytest

from autolayers import records
from autolayers.devices import hypothetical
from autolayers.flags.params import Params


def both(frozen=True):
    made = []
    for module in (dataclasses, records):

        class Point:
            x: "int"
            y: "int" = 2
            tags: "dict" = module.field(default_factory=dict)

        made.append(
            module.dataclass(Point, frozen=frozen)
            if module is records
            else module.dataclass(frozen=frozen)(Point)
        )
    return made


@pytest.mark.parametrize(
    "args, kwargs", [((1,), {}), ((1, 3), {}), ((), {"x": 1, "y": 4}), ((1,), {"tags": {"a": 1}})]
)
def test_records_compare_and_print_as_dataclasses(args, kwargs):
    real, ours = (cls(*args, **kwargs) for cls in both())
    assert {f: getattr(ours, f) for f in ("x", "y", "tags")} == {
        f: getattr(real, f) for f in ("x", "y", "tags")
    }
    assert repr(ours) == repr(real)
    assert ours == type(ours)(*args, **kwargs) and ours != real and ours != type(ours)(99)


@pytest.mark.parametrize(
    "args, kwargs", [((), {}), ((1, 2, {}, 4), {}), ((1,), {"x": 1}), ((1,), {"z": 1})]
)
def test_what_dataclasses_refuse_is_refused(args, kwargs):
    for cls in both():
        with pytest.raises(TypeError):
            cls(*args, **kwargs)


def test_records_are_frozen_and_hashable():
    params = Params(n_ctx=4096)
    with pytest.raises(AttributeError):
        params.n_ctx = 1
    assert hash(params) == hash(Params(n_ctx=4096)) and {params: 1}[Params(n_ctx=4096)] == 1


def test_the_real_module_understands_them():
    device = hypothetical("24GiB")[0]
    assert dataclasses.is_dataclass(device)
    assert dataclasses.replace(device, name="CUDA3") == records.replace(device, name="CUDA3")
    assert dataclasses.asdict(device)["free"] == 24 << 30
    assert [f.name for f in dataclasses.fields(device)][:3] == ["name", "total", "free"]
