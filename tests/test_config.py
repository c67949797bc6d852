"""The configuration: TOML in and out, what is refused and how, and its digest."""

import dataclasses
import tomllib

import pytest

from noback import ExactReadout, LocalEngine, Momentum, Normal, OneSided, Rademacher
from noback.adapters import Full, Head, Lora, Prefix
from noback.config import RunConfig, config_of, read_config
from noback.errors import InputError
from noback.estimators import AdaptTies, TwoSided
from noback.objectives import Accuracy, CrossEntropy, Function, MacroF1
from noback.rules import Sgd
from noback.usual import USUAL
from noback.weights import DTYPES

# Every field with a value that is not its default; `test_every_field_is_listed_here` keeps the table whole.
OTHER = {
    "model": "some/folder",
    "task": "sst2",
    "data": 'C:\\data\\"mine".csv',
    "columns": "text,stars",
    "template": '{text} It\'s "{mask}".\nSo: \\n',
    "words": '1=great,"a, b"=bad',
    "shots": 16,
    "demonstrations": 3,
    "data_seed": 21,
    "test_limit": 50,
    "steps": 7,
    "batch": 8,
    "balance": "batches",
    "seed": 2**64 - 1,
    "dtype": "bfloat16",
    "quantise": "int4",
    "device": "cpu",
    "noise": Rademacher(),
    "readout": ExactReadout(decay=0.5, examples=9, refits=0),
    "directions_per": "example",
    "eval_every": 3,
    "patience": 4,
    "engine.matmul_precision": "tf32",
    "engine.probes_per_pass": 1,
    "engine.micro_batch": 2,
    "engine.share": "prefixes",
    "estimator.eps": 2e-3,
    "estimator.directions": 4,
    "adapt_ties": AdaptTies(target=0.5),
    "objective": MacroF1(),
    "metric": "mcc",
    "adapter.tune": "biases",
    "rule.lr": 3e-7,
    "rule.weight_decay": 0.1,
    "rule.schedule": "linear",
    "rule.clip": 3.0,
}


def table_of(values):
    """{"rule.lr": 1} as {"rule": {"lr": 1}}."""
    table = {}
    for path, value in values.items():
        *parents, name = path.split(".")
        place = table
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return table


def paths_of(kind, before=""):
    """The dotted names of every option in the tree."""
    for item in dataclasses.fields(kind):
        default = getattr(kind(), item.name)
        if dataclasses.is_dataclass(default) and dataclasses.fields(default):
            yield from paths_of(type(default), f"{before}{item.name}.")
        else:
            yield before + item.name


def refusal(path, value):
    """The sentence with which an option's value is refused."""
    with pytest.raises(InputError) as caught:
        config_of(table_of({path: value}))
    return str(caught.value)


def test_every_field_is_listed_here():
    assert set(OTHER) == set(paths_of(RunConfig))


# TOML


@pytest.mark.parametrize(
    "config", [RunConfig(), config_of(table_of(OTHER))], ids=["defaults", "nothing at its default"]
)
def test_a_configuration_comes_back_from_its_toml(config):
    assert config_of(tomllib.loads(config.toml())) == config.settled()


def test_a_digest_comes_back_from_toml():
    config = config_of(table_of(OTHER))
    assert config_of(tomllib.loads(config.toml())).digest() == config.digest()


def test_the_toml_spells_every_default_out():
    values = tomllib.loads(RunConfig().toml())
    assert (values["steps"], values["rule"]["lr"], values["estimator"]["eps"]) == (60, 2e-5, 1e-3)


def test_an_empty_table_is_the_default_configuration():
    assert config_of({}) == RunConfig()


def test_the_kind_of_an_option_object_is_written_and_read():
    assert config_of({"rule": {"kind": "sgd", "lr": 1.0}}).rule == Sgd(lr=1.0)


@pytest.mark.parametrize(
    ("entry", "objective"),
    [
        ("accuracy", Accuracy()),
        ({"kind": "macro_f1"}, MacroF1()),
        ({}, CrossEntropy()),
        (MacroF1(), MacroF1()),
        ("some.module:cost", Function("some.module:cost")),
        ({"kind": "function", "function": "m:f", "reads": "text"}, Function("m:f", reads="text")),
    ],
)
def test_an_objective_is_chosen_by_its_kind_or_by_a_text(entry, objective):
    assert config_of({"objective": entry}).objective == objective


LR = {"full": 2e-5, "head": 2e-5, "lora": 5e-4, "prefix": 5e-2}
EPS = {
    "float32": {"full": 1e-3, "head": 1e-3, "lora": 1e-3, "prefix": 3e-2},
    "bfloat16": {"full": 1e-3, "head": 1e-3, "lora": 1e-2, "prefix": 1e-1},
}


@pytest.mark.parametrize(
    "adapter", [Full("norms"), Head(alone=True, seed=3), Lora(rank=4, start="x"), Prefix(tokens=3)]
)
def test_an_adapter_comes_back_from_toml_with_its_own_lr_and_eps(adapter):
    for dtype in DTYPES:
        config = RunConfig(adapter=adapter, dtype=dtype)
        assert (config.lr, config.eps) == (LR[adapter.kind], EPS[dtype][adapter.kind])
        assert config_of(tomllib.loads(config.toml())) == config.settled()
    assert RunConfig(adapter=adapter, rule=Sgd(lr=7e-4)).lr == 7e-4
    assert dataclasses.replace(RunConfig(), adapter=adapter).lr == LR[adapter.kind]


def test_an_eps_that_is_given_counts_whatever_the_type():
    assert RunConfig(adapter=Lora(), dtype="bfloat16", estimator=TwoSided(eps=3e-4)).eps == 3e-4
    assert (RunConfig(adapter=Lora()).eps, RunConfig(adapter=Lora(), dtype="bfloat16").eps) == (1e-3, 1e-2)


def test_the_usual_numbers_go_by_adapter_estimator_rule_and_type():
    assert RunConfig(estimator=OneSided()).lr == 1e-3
    assert RunConfig(estimator=OneSided(), adapter=Lora(), dtype="bfloat16").eps == 1e-2
    assert RunConfig(rule=Momentum()).lr == RunConfig().lr


def test_the_help_of_lr_and_eps_names_every_usual_number():
    for kind, name in ((TwoSided, "eps"), (OneSided, "eps"), (Sgd, "lr"), (Momentum, "lr")):
        (text,) = [item.metadata["help"] for item in dataclasses.fields(kind) if item.name == name]
        numbers = {getattr(row, name) for row in USUAL if row.estimator != "backprop"} - {None}
        assert len(numbers) > 2
        assert all(f" {number:g}" in text for number in numbers)


def test_the_noise_is_the_estimators_usual_one_unless_it_is_named():
    assert RunConfig().settled().noise == Normal()
    assert RunConfig(estimator=OneSided()).settled().noise == Rademacher()
    assert RunConfig(estimator=OneSided(), noise=Normal()).settled().noise == Normal()


def test_options_stand_where_0_1_0_had_them():
    ties = {"target": 0.3, "largest": 0.05}
    old = {"products": "tf32", "probes_per_pass": 2, "micro_batch": 3, "share": "none", "noise": "rademacher"}
    new = RunConfig(
        engine=LocalEngine("tf32", 2, 3, "none"), noise=Rademacher(), adapt_ties=AdaptTies(target=0.3, largest=0.05)
    )
    assert config_of({**old, "estimator": {"kind": "two_sided", "adapt_ties": ties}}) == new


def test_an_unknown_kind_comes_with_the_nearest():
    assert refusal("objective", "acuracy").endswith("did you mean 'accuracy'?")
    assert refusal("adapter", {"kind": "heads"}).endswith("did you mean 'head'?")


def test_an_option_of_another_kind_is_unknown():
    sentence = refusal("adapter", {"kind": "full", "alone": True})
    assert sentence == "adapter 'full' has no option 'adapter.alone'; adapter 'head' has it"


def test_a_file_is_read_as_its_tables(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(RunConfig(steps=5).toml())
    assert config_of(read_config(file)) == RunConfig(steps=5).settled()


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml' does not exist"):
        read_config(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("content", [b"steps = ", b"\xff\xfe"], ids=["cut off", "not text"])
def test_a_file_that_is_no_toml_is_named(content, tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"run\.toml' is not TOML"):
        read_config(file)


# Keys


@pytest.mark.parametrize(
    ("path", "nearest"),
    [("stepz", "steps"), ("modle", "model"), ("data-seed", "data_seed"), ("rule.weight_decy", "weight_decay")],
)
def test_an_unknown_key_comes_with_the_nearest(path, nearest):
    sentence = refusal(path, 1)
    assert f"unknown option {path!r}" in sentence
    assert f"{nearest}'?" in sentence


def test_an_unknown_key_like_no_other_comes_without_a_suggestion():
    assert refusal("zzz", 1) == "unknown option 'zzz'"


@pytest.mark.parametrize(
    ("path", "kind"), [("rule.kind", "lion"), ("estimator.kind", "three_sided"), ("engine.kind", "remote")]
)
def test_an_unknown_kind_is_refused(path, kind):
    assert f"{path.removesuffix('.kind')} is {kind!r}; expected " in refusal(path, kind)


# Types


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("steps", "5", "a whole number"),
        ("steps", 5.0, "a whole number"),
        ("steps", True, "a whole number"),
        ("steps", None, "a whole number"),
        ("shots", "all", "a whole number"),
        ("seed", 1.5, "a whole number"),
        ("estimator.directions", 1.5, "a whole number"),
        ("model", 5, "a text"),
        ("data", 5, "a text"),
        ("model", None, "a text"),
        ("dtype", 32, "a text"),
        ("rule", 5, "a table of options"),
        ("estimator", 1e-3, "a table of options"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(path, value, expected):
    assert refusal(path, value) == f"{path} is {value!r}; expected {expected}"


@pytest.mark.parametrize(
    "path", ["data", "columns", "shots", "demonstrations", "eval_every", "patience", "probes_per_pass", "micro_batch"]
)
def test_none_switches_an_optional_value_off(path):
    assert config_of({path: None}) == RunConfig()


@pytest.mark.parametrize("path", ["rule.lr", "estimator.eps", "rule.weight_decay"])
def test_a_whole_number_serves_where_a_number_is_asked(path):
    config = config_of(table_of({path: 1}))
    parent, name = path.split(".")
    assert isinstance(getattr(getattr(config, parent), name), float)


# Ranges


@pytest.mark.parametrize("path", ["estimator.eps", "rule.lr"])
@pytest.mark.parametrize("value", [0, 0.0, -1, -1e-5, float("nan"), float("inf"), float("-inf")])
def test_eps_and_lr_that_are_not_above_zero_are_refused(path, value):
    assert f"{path.partition('.')[2]} is {float(value)!r}; expected a number above zero" in refusal(path, value)


@pytest.mark.parametrize("path", ["estimator.eps", "rule.lr"])
@pytest.mark.parametrize("value", ["abc", "1e-3", True, [1e-3]])
def test_eps_and_lr_that_are_no_numbers_are_refused(path, value):
    expected = "a number or auto" if path == "rule.lr" else "a number"
    assert refusal(path, value) == f"{path} is {value!r}; expected {expected}"


@pytest.mark.parametrize("build", [lambda value: TwoSided(eps=value), lambda value: Sgd(lr=value)], ids=["eps", "lr"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "abc"])
def test_eps_and_lr_are_checked_in_python_too(build, value):
    with pytest.raises(InputError, match="expected a number above zero"):
        build(value)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_weight_decay_below_zero_is_refused(value):
    assert "weight_decay is" in refusal("rule.weight_decay", value)


def test_no_weight_decay_is_allowed():
    assert config_of(table_of({"rule.weight_decay": 0})).rule.weight_decay == 0.0


@pytest.mark.parametrize(
    "path",
    [
        "steps",
        "batch",
        "test_limit",
        "shots",
        "eval_every",
        "patience",
        "probes_per_pass",
        "micro_batch",
        "estimator.directions",
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_count_below_one_is_refused(path, value):
    assert f"{path.rpartition('.')[2]} is {value}; expected a whole number above zero" in refusal(path, value)


@pytest.mark.parametrize(("name", "limit"), [("seed", 2**64), ("data_seed", 2**32)])
@pytest.mark.parametrize("above", [False, True], ids=["below", "above"])
def test_a_seed_out_of_range_comes_with_its_range(name, limit, above):
    value = limit if above else -1
    assert refusal(name, value) == f"{name} is {value}; expected a whole number from 0 to {limit - 1}"


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 0), ("seed", 2**64 - 1), ("data_seed", 0), ("data_seed", 2**32 - 1)]
)
def test_a_seed_at_either_end_of_its_range_is_taken(name, value):
    assert getattr(config_of({name: value}), name) == value


@pytest.mark.parametrize(
    ("path", "value", "nearest"),
    [("dtype", "float23", "float32"), ("noise", "norml", "normal"), ("rule.schedule", "linaer", "linear")],
)
def test_an_unknown_choice_comes_with_the_nearest(path, value, nearest):
    sentence = refusal(path, value)
    assert "expected one of" in sentence
    assert f"did you mean {nearest!r}?" in sentence


# Digest


def test_the_digest_does_not_name_the_device():
    assert RunConfig(device="cpu").digest() == RunConfig().digest()
    assert "device" not in RunConfig(device="cpu").recorded()


@pytest.mark.parametrize("path", [path for path in OTHER if path != "device"])
def test_the_digest_changes_with_every_other_field(path):
    assert config_of(table_of({path: OTHER[path]})).digest() != RunConfig().digest()


def test_equal_configurations_have_equal_digests():
    assert RunConfig().digest() == RunConfig().digest()


# Looks


@pytest.mark.parametrize(
    ("values", "steps"),
    [({"steps": 400}, 40), ({"steps": 5}, 1), ({"steps": 400, "eval_every": 7}, 7)],
    ids=["a tenth of the run", "a short run", "as asked"],
)
def test_the_validation_set_is_looked_at_this_often(values, steps):
    assert config_of(values).steps_between_evaluations == steps
