"""The settings of FedOSS, grouped by purpose."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from fedwild.contract import Settings
from fedwild.openset import DecisionSettings
from fedwild.training import RoundTraining

AUTO = "auto"
BranchKind = Literal["light", "full"]
BoundaryName = Literal["agreement", "informed", "perturbation", "margin", "all"]
StepUnit = Literal["gradient", "length"]
Away = Literal["class", "known"]


class TrainingSettings(RoundTraining):
    """How clients train in the two phases."""

    batch_size: int = Field(32, ge=1, description="samples per step; the last partial batch is kept")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="optimiser of pre-training, reset every round")
    lr: float = Field(0.02, gt=0, description="learning rate during pre-training")
    rounds: int = Field(100, ge=0, description="rounds of pre-training")
    halve_after: int = Field(25, ge=1, description="pre-training rounds between two halvings of the learning rate")
    pretrain_outputs: Literal["known", "all"] = Field(
        "known", description="outputs in the loss of pre-training: the K known classes, or all K + 1"
    )
    finetune_rounds: int = Field(30, ge=0, description="rounds of fine-tuning with virtual unknown samples")
    finetune_optimizer: Literal["sgd", "adam"] = Field("adam", description="optimiser of fine-tuning, reset each round")
    finetune_lr: float = Field(1e-4, gt=0, description="learning rate during fine-tuning")
    prior: bool = Field(True, description="add the client's log label shares to the logits of known samples")

    @model_validator(mode="after")
    def _has_rounds(self) -> Self:
        if self.rounds + self.finetune_rounds == 0:
            raise ValueError("rounds = 0 and finetune_rounds = 0 are not allowed: one of them must be at least 1")
        return self


class HeadSettings(Settings):
    """The personal heads and where they are attached."""

    cut: str = Field(
        AUTO, description="stage after which personal heads and synthesis begin; auto: the last before dense layers"
    )
    branch: BranchKind = Field("full", description="light: linear personal heads; full: copies of all after the cut")
    bank: int = Field(16, ge=2, description="maximum number of personal heads that are sent to clients")


class BoundarySettings(Settings):
    """Which samples count as boundary samples."""

    boundary: BoundaryName = Field("informed", description="which samples are pushed; agreement: Eq. 1 as printed")
    low: float = Field(0.0, ge=0, lt=1, description="agreement, informed: boundary samples have s above this value")
    high: float = Field(1.0, gt=0, le=1, description="agreement, informed: boundary samples have s below this value")
    width: float = Field(
        0.5, gt=0, description="margin: maximum margin; perturbation: its length relative to the sample's"
    )

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"low = {self.low} must be below high = {self.high}, otherwise no sample lies near the boundary"
            )
        return self


class PushSettings(Settings):
    """How boundary samples become virtual unknown samples (DUSS)."""

    steps: int = Field(1, ge=0, description="T, the number of steps by which boundary samples are pushed")
    step_size: float = Field(0.25, gt=0, description="lambda, the size of a step in units of step_unit")
    step_unit: StepUnit = Field("length", description="length: the sample's own length; gradient: the raw gradient")
    away: Away = Field("known", description="push samples away from their own class (Eq. 3), or from all known ones")
    rectify: bool = Field(False, description="raise negative values of pushed and drawn features to 0, as ReLU does")
    accept: Literal["all", "unknown"] = Field(
        "all", description="pushed samples that are used: all, or only those that the network already calls unknown"
    )
    masked: bool = Field(True, description="exclude the sample's own class from the unknown loss (Eq. 13)")
    duss: float = Field(0.1, ge=0, description="weight of the loss of pushed samples")


class GaussianSettings(Settings):
    """How clients share Gaussians of pushed samples and draw from them (FOSS)."""

    foss: float = Field(0.1, ge=0, description="weight of the loss of drawn samples; 0: no statistics are sent")
    aggregate: bool = Field(True, description="draw from Gaussians of all clients; false: from the client's own")
    select: Literal["lowest", "density", "none"] = Field(
        "lowest", description="lowest: keep the least likely draws; density: those below log_density; none: any"
    )
    draws: int = Field(100, ge=1, description="draws per class and batch")
    keep: int = Field(6, ge=1, description="number of draws that are kept")
    max_drawn: int | None = Field(
        None, ge=1, description="maximum number of kept draws per batch, chosen at random among all classes"
    )
    draw_in: Literal["all", "boundary"] = Field(
        "all", description="batches for which samples are drawn: all, or only those with boundary samples"
    )
    own_pass: bool = Field(
        False, description="pass drawn samples through the network by themselves, so that batch-norm sees only them"
    )
    log_density: float | None = Field(None, description="log of the paper's epsilon; required by select = density")
    refresh: int = Field(1, ge=1, description="number of rounds between two updates of the Gaussians")
    first_refresh: int = Field(0, ge=0, description="first fine-tuning round, from 0, that updates the Gaussians")
    dims: int = Field(2048, ge=1, description="for Gaussians, average larger activations over space to this size")
    min_count: int = Field(5, ge=1, description="send no statistics of a class with fewer pushed samples")

    @model_validator(mode="after")
    def _can_select(self) -> Self:
        if self.select == "density" and self.log_density is None:
            raise ValueError(
                "select = 'density' needs log_density, the upper limit of a draw's log density; "
                "it depends on network and data, for example -1000"
            )
        if self.keep > self.draws:
            raise ValueError(f"keep = {self.keep} must not exceed draws = {self.draws}")
        return self


# Pydantic lists the fields of the last base first.
class FedOSSParams(DecisionSettings, GaussianSettings, PushSettings, BoundarySettings, HeadSettings, TrainingSettings):
    """The settings of FedOSS, and how the network answers "unknown"."""
