"""Settings of a run: layers in, one validated config out, and lossless TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedwild.api import configure, flag_layer
from fedwild.core.errors import UserError
from fedwild.core.toml import read_toml
from fedwild.methods import METHODS, demonstration
from fedwild.runs.components import KINDS
from fedwild.runs.config import Config, parse_setting, resolve

DIGITS = demonstration(METHODS.get("fedavg"))
ODD_NAMES = ['quo"te', "back\\slash", "ünïcödé", "new\nline", "tab\t", "a.b", "it's", "", "#", "[x]", "={}", "日本"]


def problems(*layers: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        resolve(*layers)
    return caught.value.problems


def via_toml(config: Config) -> Config:
    return resolve(tomllib.loads(config.to_toml()))


# --- round trips ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS.names())
@pytest.mark.parametrize("data", ["digits", "mnist"])
def test_table_and_toml_give_the_config_again(method: str, data: str) -> None:
    config = configure(method=method, data=data, seed=2**63 - 1, clients=7, partition="dirichlet:0.1")
    assert resolve(config.table()) == config
    assert via_toml(config) == config


def test_toml_keeps_every_section() -> None:
    config = configure(
        {
            "data": {"name": ["mnist", "usps"], "known": ["0", "1"], "novel": 2, "mean": [0.5], "std": 1e-05},
            "model": {"name": "mlp", "hidden": [8, 4]},
            "score": {"name": "energy", "temperature": 0.3},
            "objective": {"name": "ce", "label_smoothing": 0.1},
            "partition": {"name": "classes", "k": 3},
            "pool_partition": {"name": "dirichlet", "beta": 0.1},
            "federation": {"participation": 0.25, "arrivals": {"client-01": 3}},
            "evaluation": {"every": 0, "accept": 0.9},
            "engine": {"workers": 3, "max_reply_mb": 0.5},
        }
    )
    assert via_toml(config) == config
    assert config.table()["score"] == {"name": "energy", "temperature": 0.3}


@pytest.mark.parametrize("name", [*ODD_NAMES, "smile 😀", "delete\x7f"])
def test_toml_keeps_class_and_client_names_of_any_characters(name: str) -> None:
    config = configure(
        {
            "data": {"name": f"my {name}.npz", "known": [name, "other"], "known_by_client": {name: [name]}},
            "federation": {"arrivals": {name: 2}},
        }
    )
    again = via_toml(config)
    assert again == config
    assert again.data.known == [name, "other"]
    assert again.data.known_by_client == {name: [name]}
    assert again.federation.arrivals == {name: 2}


def test_toml_keeps_the_settings_of_a_users_own_network() -> None:
    own = {"name": "my.package:Net", "width": 3, "rate": 0.1, "deep": True, "names": ["a", "b"], "table": {"a b": 1}}
    config = configure({"model": own})
    assert via_toml(config) == config
    assert via_toml(config).table()["model"] == own


def test_toml_keeps_open_settings_open() -> None:
    config = via_toml(configure(data="mnist"))
    assert config.model is None
    assert config.federation.clients is None
    assert config.partition.name is None
    assert config.data.known is None


def test_results_depend_on_all_settings_but_the_engine() -> None:
    config = configure(workers=3)
    assert config.decisive() == configure(workers=0).decisive()
    assert config.table().keys() - config.decisive().keys() == {"engine"}
    assert configure(seed=1).decisive() != config.decisive()


# --- layers --------------------------------------------------------------------------------------------------


def test_the_default_is_fedavg_on_digits_with_demonstration_settings() -> None:
    config = configure()
    assert (config.method.name, config.data.name, config.seed) == ("fedavg", "digits", 0)
    assert config.method.table().items() >= DIGITS["method"].items()
    assert {kind: part.name for kind, part in config.parts.items()} == {
        kind: KINDS[kind][1] for kind in METHODS.get("fedavg").parts
    }


@pytest.mark.parametrize("method", METHODS.names())
def test_naming_the_method_keeps_its_demonstration_settings(method: str) -> None:
    digits = demonstration(METHODS.get(method)).get("method", {})
    assert configure(method=method).method.table().items() >= digits.items()
    assert configure({"method": {"name": method}}, data="digits").method.table().items() >= digits.items()


@pytest.mark.parametrize("method", METHODS.names())
def test_other_data_gets_the_defaults_of_the_method(method: str) -> None:
    params = METHODS.get(method).Params()
    assert configure(method=method, data="mnist").method.params == params


def test_set_overrides_flags_which_override_the_file_which_overrides_demonstration_settings(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("seed = 1\n[method]\nepochs = 5\nrounds = 5\nlr = 0.5\n[federation]\nclients = 5\n")
    config = configure(file, rounds=6, seed=2, clients=6, settings=["method.rounds=7", "seed=3"])
    assert config.method.params.batch_size == DIGITS["method"]["batch_size"]  # type: ignore[attr-defined]
    assert config.method.params.epochs == 5  # type: ignore[attr-defined]
    assert config.method.params.lr == 0.5  # type: ignore[attr-defined]
    assert config.federation.clients == 6
    assert config.method.params.rounds == 7  # type: ignore[attr-defined]
    assert config.seed == 3


def test_a_flag_that_is_not_given_changes_nothing() -> None:
    assert flag_layer() == {}
    assert flag_layer(seed=0) == {"seed": 0}
    assert flag_layer(clients=0) == {"federation": {"clients": 0}}


def test_the_last_of_two_equal_settings_applies() -> None:
    assert configure(settings=["seed=4", "seed=5"]).seed == 5


def test_settings_can_be_tables() -> None:
    assert configure({"seed": 1}, settings={"seed": 2, "method": {"rounds": 3}}).seed == 2


def test_resolving_does_not_change_the_layers() -> None:
    file, flags = {"method": {"lr": 0.5}, "data": {"name": "mnist"}}, {"method": {"lr": 0.1}}
    resolve(file, flags)
    resolve({"method": {"rounds": 99, "epochs": 99}})
    assert file == {"method": {"lr": 0.5}, "data": {"name": "mnist"}}
    assert demonstration(METHODS.get("fedavg")) == DIGITS


@pytest.mark.parametrize(
    ("section", "old", "new"),
    [
        ("method", {"name": "fedavg", "rounds": 3, "lr": 0.7}, "local-only"),
        ("model", {"name": "mlp", "hidden": [3]}, "simple-cnn"),
        ("partition", {"name": "classes", "k": 3}, "iid"),
        ("pool_partition", {"name": "classes", "k": 3}, "iid"),
        ("score", {"name": "energy", "temperature": 3.0}, "msp"),
    ],
)
def test_another_component_in_a_later_layer_drops_the_settings_of_the_old_one(
    section: str, old: dict[str, Any], new: str
) -> None:
    config = resolve({"data": {"name": "mnist"}, section: old}, {section: {"name": new}})
    assert config.table() == resolve({"data": {"name": "mnist"}, section: {"name": new}}).table()


def test_naming_the_same_component_again_keeps_its_settings() -> None:
    config = resolve({"score": {"name": "energy", "temperature": 3.0}}, {"score": {"name": "energy"}})
    assert config.parts["score"].table() == {"name": "energy", "temperature": 3.0}


def test_naming_the_default_method_keeps_its_settings_in_the_file() -> None:
    config = configure({"method": {"rounds": 3}}, method="fedavg", data="mnist")
    assert config.method.params.rounds == 3  # type: ignore[attr-defined]


def test_a_flag_can_name_the_network_whose_settings_are_in_the_file() -> None:
    config = configure({"model": {"hidden": [8]}}, model="mlp")
    assert config.model is not None
    assert config.model.table() == {"name": "mlp", "hidden": [8]}


def test_only_a_given_pool_partition_is_part_of_the_table() -> None:
    plain, given = configure(), configure(settings=["pool_partition.name=class-mix:0.3"])
    assert "pool_partition" not in plain.table()
    assert given.table()["pool_partition"] == {"name": "class-mix", "beta": 0.3}
    assert plain.digest() != given.digest()
    assert given.partition == plain.partition


def test_a_short_partition_in_a_flag_overrides_that_of_the_file() -> None:
    config = configure({"partition": {"name": "dirichlet", "beta": 0.1}}, partition="dirichlet:0.7")
    assert (config.partition.name, config.partition.params) == ("dirichlet", {"beta": 0.7})
    config = configure({"partition": {"name": "dirichlet:0.7"}}, settings=["partition.beta=0.2"])
    assert config.partition.params == {"beta": 0.2}


def test_several_data_sets_are_a_list_and_one_is_text() -> None:
    assert configure(data=["mnist"]).data.name == "mnist"
    assert configure(data=["mnist", "usps"]).data.name == ["mnist", "usps"]


# --- invalid settings ----------------------------------------------------------------------------------------


def test_one_error_reports_all_problems() -> None:
    found = problems(
        {
            "seed": -1,
            "metod": {},
            "method": {"name": "fedavg", "lr": 0, "epoch": 2},
            "data": {"validation": 1.5},
            "federation": {"clients": 0},
            "model": {"name": "mlpp"},
            "score": {"name": "mspp"},
            "objective": {"name": "cee"},
            "evaluation": {"accept": "most"},
            "engine": {"workers": -1},
            "partition": {"name": "irid"},
        }
    )
    for words in (
        "seed = -1",
        "metod is not a setting. Did you mean 'method'?",
        "method.lr = 0",
        "method.epoch is not a setting. Did you mean 'epochs'?",
        "data.validation = 1.5",
        "federation.clients = 0",
        "model 'mlpp' is not known. Did you mean 'mlp'?",
        "score 'mspp' is not known. Did you mean 'msp'?",
        "objective 'cee' is not known. Did you mean 'ce'?",
        "evaluation.accept = 'most'",
        "engine.workers = -1",
        "partition 'irid' is not known. Did you mean 'iid'?",
    ):
        assert len([sentence for sentence in found if words in sentence]) == 1, words
    assert len(found) == 12


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "1", True, None, [1]])
def test_an_invalid_seed_is_rejected(seed: Any) -> None:
    (sentence,) = problems({"seed": seed})
    assert f"seed = {seed!r}" in sentence


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_a_seed_of_63_bits_is_allowed(seed: int) -> None:
    assert resolve({"seed": seed}).seed == seed


@pytest.mark.parametrize("section", ["data", "partition", "pool_partition", "method", "model", "score", "engine"])
@pytest.mark.parametrize("value", [3, "x", [1], True])
def test_a_section_that_is_not_a_table_is_rejected(section: str, value: Any) -> None:
    (sentence,) = problems({section: value})
    assert f"{section} = {value!r}" in sentence
    assert f"[{section}]" in sentence


@pytest.mark.parametrize("section", ["method", "model", "score", "partition"])
@pytest.mark.parametrize("name", [3, ["a"], True])
def test_a_name_that_is_not_text_is_one_problem(section: str, name: Any) -> None:
    (sentence,) = problems({section: {"name": name}})
    assert f"{section}.name = {name!r}" in sentence


def test_settings_of_an_unnamed_network_are_rejected() -> None:
    (sentence,) = problems({"model": {"width": 3}})
    assert "model.name is missing" in sentence
    assert "width" in sentence


def test_a_component_that_the_method_does_not_have_is_rejected() -> None:
    (sentence,) = problems({"method": {"name": "local-only"}, "correction": {"name": "none"}})
    assert "[correction]" in sentence
    assert "'local-only'" in sentence
    assert "objective, score" in sentence


def test_rounds_of_a_method_without_rounds_are_rejected() -> None:
    with pytest.raises(UserError) as caught:
        configure(method="local-only", rounds=3)
    (sentence,) = caught.value.problems
    assert "method.rounds is not a setting" in sentence
    assert "epochs" in sentence


def test_a_negative_arrival_is_rejected() -> None:
    (sentence,) = problems({"federation": {"arrivals": {"client-00": -1}}})
    assert "federation.arrivals" in sentence


# --- --set and files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("method.lr=0.1", {"method": {"lr": 0.1}}),
        (" method.lr = 0.1 ", {"method": {"lr": 0.1}}),
        ("seed=3", {"seed": 3}),
        ("data.known=[0, 1]", {"data": {"known": [0, 1]}}),
        ('data.known=["a=b"]', {"data": {"known": ["a=b"]}}),
        ("data.name=mnist", {"data": {"name": "mnist"}}),
        ("data.name=a=b.npz", {"data": {"name": "a=b.npz"}}),
        ('data.name="3"', {"data": {"name": "3"}}),
        ("federation.arrivals={c=1}", {"federation": {"arrivals": {"c": 1}}}),
        ("data.name=", {"data": {"name": ""}}),
        ("x.y=true", {"x": {"y": True}}),
    ],
)
def test_a_setting_is_a_key_and_a_toml_value_or_text(text: str, table: dict[str, Any]) -> None:
    assert parse_setting(text) == table


@pytest.mark.parametrize("text", ["nonsense", "=3", ".=3", "a.=3", ".b=3", "", "a..b=1"])
def test_a_setting_of_another_form_is_rejected_with_the_right_one(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_setting(text)
    assert f"--set {text!r}" in str(caught.value)
    assert "section.key=value" in str(caught.value)


def test_a_setting_with_a_second_line_is_rejected() -> None:
    with pytest.raises(UserError, match="single setting"):
        parse_setting("method.lr=1\nx=2")


def test_an_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken.toml", tmp_path / "binary.toml"
    broken.write_text("[method\nlr = 1")
    binary.write_bytes(b"\xff\xfe\x00")
    for path, words in (
        (tmp_path / "none.toml", "does not exist"),
        (tmp_path, "is a folder: a regular file is required"),
        (binary, "cannot be read"),
        (broken, "is not valid TOML"),
    ):
        with pytest.raises(UserError) as caught:
            read_toml(path)
        (sentence,) = caught.value.problems
        assert repr(str(path)) in sentence
        assert words in sentence
        assert "\n" not in sentence
    with pytest.raises(UserError, match="line 1"):
        read_toml(broken)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "notepad.toml"
    file.write_bytes(b"\xef\xbb\xbfseed = 3\n")
    assert read_toml(file) == {"seed": 3}


def test_class_names_that_are_numbers_become_text() -> None:
    assert resolve({"data": {"name": "mnist", "known": [0, 1]}}).data.known == ["0", "1"]


@pytest.mark.parametrize("method", ["fedma", "fedpd"])
def test_start_from_is_rejected_if_every_client_starts_with_its_own_model(method: str) -> None:
    layers = {"method": {"name": method, "start": "own"}, "federation": {"start_from": "runs/other"}}
    with pytest.raises(UserError, match=r"start_from = 'runs/other' is not allowed with method.start = 'own'"):
        resolve(layers).make_method()


# --- newcomers -----------------------------------------------------------------------------------------------


def test_settings_of_newcomers_with_any_name_can_be_set_one_by_one() -> None:
    config = configure(
        {"data": {"newcomers": {"ann": {"name": "usps"}}}},
        method="gains",
        data="mnist",
        settings=["data.newcomers.ann.resize=true", "data.newcomers.site.b.2.name=late.npz", "data.newcomers.c.name=x"],
    )
    newcomers = config.data.newcomers
    assert list(newcomers) == ["ann", "site.b.2", "c"]
    assert (newcomers["ann"].name, newcomers["ann"].resize) == ("usps", True)
    assert newcomers["site.b.2"].name == "late.npz"


def test_tables_of_newcomers_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[data]\nname = "mnist"\n[data.newcomers.ann]\nname = "usps"\nlabels = { zwei = "2" }\n')
    given = ["data.newcomers.ann.labels={drei='3'}", "data.newcomers.ben={name='svhn'}"]
    newcomers = configure(file, method="gains", settings=given).data.newcomers
    assert newcomers["ann"].labels == {"zwei": "2", "drei": "3"}
    assert (newcomers["ann"].name, newcomers["ben"].name) == ("usps", "svhn")


@pytest.mark.parametrize("name", [*ODD_NAMES, "with.points"])
def test_toml_keeps_newcomers_and_their_labels(name: str) -> None:
    table = {"name": "x.npz", "classes": [name], "labels": {name: "2"}, "resize": True, "welcomed": True}
    config = configure({"data": {"newcomers": {name: table}}}, data="mnist")
    assert via_toml(config) == config
    assert via_toml(config).data.newcomers[name].labels == {name: "2"}


def test_the_users_newcomers_replace_that_of_the_demonstration() -> None:
    assert list(configure(method="gains").data.newcomers) == ["newcomer"]
    own = configure({"data": {"newcomers": {"ann": {"name": "late.npz"}}}}, method="gains")
    assert list(own.data.newcomers) == ["ann"]
