"""Settings: all problems are reported at once, each with its key, its value and what is allowed."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError, model_validator

from fedwild.core.errors import UserError, unknown_name
from fedwild.core.settings import Settings, unknown_key, validate, with_defaults


class Oven(Settings):
    heat: float = Field(180.0, gt=0, le=300, description="degrees")
    minutes: int = Field(..., ge=1, description="how long")
    mode: Literal["fan", "grill"] = Field("fan", description="which")
    trays: list[int] = Field(default_factory=lambda: [1], description="where")
    label: str | None = Field(None, description="what")
    light: bool = Field(True, description="on or off")

    @model_validator(mode="after")
    def _not_burnt(self) -> Oven:
        if self.heat > 250 and self.minutes > 60:
            raise ValueError("heat and minutes: that burns")
        return self


def problems(**values: Any) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        validate(Oven, values, "oven")
    return caught.value.problems


def test_valid_values_are_completed_by_defaults() -> None:
    oven = validate(Oven, {"minutes": 5}, "oven")
    assert (oven.heat, oven.minutes, oven.trays) == (180.0, 5, [1])


def test_settings_are_immutable() -> None:
    oven = validate(Oven, {"minutes": 5}, "oven")
    with pytest.raises(ValidationError):
        oven.heat = 1.0  # type: ignore[misc]


def test_each_problem_is_one_sentence() -> None:
    found = problems(minutes=0, heat=-3, mode="steam", timer=1)
    assert len(found) == 4
    assert all("\n" not in sentence and sentence.endswith(".") for sentence in found)
    assert str(UserError(*found)).splitlines() == list(found)


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"minutes": 0}, ("oven.minutes = 0", ">= 1", "whole number")),
        ({"minutes": "soon"}, ("oven.minutes = 'soon'", "whole number")),
        ({"minutes": 1.5}, ("oven.minutes = 1.5", "whole number")),
        ({"minutes": None}, ("oven.minutes = None", "whole number")),
        ({"minutes": [5]}, ("oven.minutes = [5]", "whole number")),
        ({"heat": 301}, ("oven.heat = 301", "> 0", "<= 300")),
        ({"heat": float("nan")}, ("oven.heat = nan", "finite")),
        ({"heat": float("inf")}, ("oven.heat = inf", "finite")),
        ({"mode": "steam"}, ("oven.mode = 'steam'", "fan | grill")),
        ({"label": 3}, ("oven.label = 3", "text")),
        ({"trays": 3}, ("oven.trays = 3", "list")),
        ({"light": "perhaps"}, ("oven.light = 'perhaps'", "true or false")),
    ],
)
def test_an_invalid_value_is_reported_with_what_is_allowed(values: dict[str, Any], parts: tuple[str, ...]) -> None:
    (sentence,) = problems(**{"minutes": 5, **values})
    assert all(part in sentence for part in parts), sentence


@pytest.mark.parametrize("key", ["minutes", "heat"])
def test_true_is_rejected_as_a_number(key: str) -> None:
    (sentence,) = problems(**{"minutes": 5, key: True})
    assert sentence.startswith(f"oven.{key} = True is not allowed: true and false are not allowed here (")


def test_an_invalid_item_is_reported_with_the_whole_list() -> None:
    (sentence,) = problems(minutes=5, trays=[1, "x", 2])
    assert "oven.trays = [1, 'x', 2]" in sentence


def test_two_invalid_items_of_a_list_are_one_problem() -> None:
    assert len(problems(minutes=5, trays=["x", "y"])) == 1


def test_a_missing_value_is_reported() -> None:
    assert problems() == ("oven.minutes is missing: it is required (whole number, >= 1).",)


def test_an_unknown_key_gets_a_suggestion_and_the_list_of_keys() -> None:
    (sentence,) = problems(minutes=5, minuts=3)
    assert "oven.minuts is not a setting" in sentence
    assert "Did you mean 'minutes'?" in sentence
    assert "heat, label, light, minutes, mode, trays" in sentence


def test_a_key_close_to_no_other_gets_no_suggestion() -> None:
    (sentence,) = problems(minutes=5, zzzz=3)
    assert "Did you mean" not in sentence


def test_unknown_key_reports_that_no_key_is_allowed() -> None:
    assert unknown_key("score.x", "x", []) == "score.x is not a setting. Allowed here: nothing."


def test_a_rule_over_several_keys_is_reported_with_the_section() -> None:
    (sentence,) = problems(minutes=61, heat=260)
    assert sentence == "oven: heat and minutes: that burns."


def test_describe_returns_a_row_per_setting() -> None:
    rows = {row["name"]: row for row in Oven.describe()}
    assert list(rows) == ["heat", "minutes", "mode", "trays", "label", "light"]
    assert {key: rows["heat"][key] for key in ("type", "default", "description")} == {
        "type": "number",
        "default": 180.0,
        "description": "degrees",
    }
    assert set(rows["heat"]["allowed"].split(", ")) == {"> 0", "<= 300"}
    assert rows["minutes"]["default"] is None
    assert rows["mode"]["allowed"] == "fan | grill"
    assert rows["trays"]["default"] == [1]
    assert rows["label"]["type"] == "text"


def test_an_unknown_name_is_reported_with_a_suggestion_and_all_names() -> None:
    sentence = str(unknown_name("method", "fedavgg", ["local-only", "fedavg"]))
    assert sentence == "method 'fedavgg' is not known. Did you mean 'fedavg'? Available: fedavg, local-only."
    assert "Did you mean" not in str(unknown_name("method", "qqq", ["fedavg"]))


def test_other_defaults_keep_limits_and_descriptions() -> None:
    quick = with_defaults(Oven, {"heat": 220.0, "minutes": 1})
    assert (quick().heat, quick().minutes, quick().mode) == (220.0, 1, "fan")  # type: ignore[call-arg]
    assert quick.describe()[0]["description"] == "degrees"
    with pytest.raises(UserError, match=r"oven\.heat = 400 is not allowed: it must be less than or equal to 300"):
        validate(quick, {"heat": 400}, "oven")
    assert Oven(minutes=1).heat == 180.0
