"""FedOV. Diao, Li, He: Towards addressing label skews in one-shot federated learning. ICLR 2023.

Each client trains a classifier over all K classes of the federation and "unknown" from its own random initialisation
and uploads it once (Algorithm 1). The server keeps them all and lets them vote. With `objective.name=proser` or
`objective.enhanced=false` this one file is the paper's ablation (Table 2). The paper's vote is `voting="all"`; the
default corrects what its Appendix A.3 names, see `fedwild/openset/voting.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.errors import BadReply, UserError
from fedwild.methods.base import METHODS
from fedwild.methods.distilled import Distilled, DistilledParams
from fedwild.methods.one_shot import OneShot, OneShotTraining
from fedwild.metrics import UNKNOWN
from fedwild.models import Network
from fedwild.openset.voting import (
    Calibration,
    calibrate,
    calibrated_votes,
    confident_votes,
    stacked,
    stacked_outputs,
)
from fedwild.payload import Payload
from fedwild.protocol import Client, Outcome, Prediction, Predictor, Replies, Server
from fedwild.rng import Rng

Voting = Literal["calibrated", "all"] | Annotated[int, Field(ge=1)]
# All k are computed; of large ensembles only these are reported.
REPORTED_K = (*range(1, 11), 20, 40, 80, 160)


@METHODS.add("fedov")
class FedOV(OneShot):
    """One shot: open-set classifiers vote, each on what it does not believe to be unknown."""

    class Params(OneShotTraining):
        voting: Voting = Field(
            "calibrated", description="calibrated, all (the paper's), or a number k: the k most confident models"
        )

    composes: ClassVar[tuple[str, ...]] = ("objective",)
    parts = {"objective": {"name": "outlier-aware"}}
    digits = {"method": {"epochs": 20, "batch_size": 16, "lr": 0.003}}
    params: Params

    def __init__(self, params: Any, **parts: Any) -> None:
        super().__init__(params, **parts)
        if self.objective.extra_outputs != 1:
            raise UserError(
                f"objective.name = {self.objective.name!r} is not allowed: method {self.name!r} needs an objective "
                "that trains an unknown output, such as outlier-aware or proser."
            )

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        classes = len(server.classes)
        like = Calibration(torch.empty(classes), torch.empty(classes, dtype=torch.int64))
        return {**super().expects(server), "calibration": like._asdict()}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        counts = reply.group("calibration")["counts"]
        if int(counts.min()) < 0 or int(counts.sum()) != reply.info["samples"]:
            raise BadReply("calibration counts do not add up to the number of samples")

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model, reply = self.trained(client, rng)
        calibration = calibrate(model, client.train, client.validation, len(client.classes))
        reply.put("calibration", calibration._asdict())
        return reply

    def merge(self, server: Server, replies: Replies) -> None:
        super().merge(server, replies)
        for reply in replies:
            server.state.add(f"calibrations/{reply.client}", reply.payload.group("calibration"))

    def forget(self, server: Server) -> None:
        super().forget(server)
        server.state.drop("calibrations")

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        """The vote of every client that had something to learn from."""
        voters = self.voters(server)
        members = server.state.members("calibrations")
        calibrations = [Calibration(**members[name]) for name in voters]
        return OpenVote(list(voters.values()), calibrations, len(server.classes), self.params.voting)

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Closed accuracy under every rule, since one pass through the models gives them all."""
        known = outcome.truth != UNKNOWN
        truth = outcome.truth[known]
        figures: dict[str, float] = {}
        for rule, classes in outcome.prediction.details.items():
            right = classes[known] == truth.unsqueeze(1)
            shares = right.double().mean(dim=0).tolist() if len(right) else [float("nan")] * right.shape[1]
            if rule == "confident":
                figures |= {f"accuracy_top_{k}": shares[k - 1] for k in REPORTED_K if k < len(shares)}
                figures["accuracy_all_votes"] = shares[-1]
            else:
                figures[f"accuracy_{rule}"] = shares[0]
        return figures


class OpenVote(Predictor):
    """The votes of open-set classifiers. Unknown is what no class has evidence for, or what the voters call unknown."""

    def __init__(
        self,
        models: Sequence[Network],
        calibrations: Sequence[Calibration],
        classes: int,
        voting: Voting,
    ) -> None:
        self.models = [model.eval() for model in models]
        self.calibrations = list(calibrations)
        self.classes = classes
        self.voting = voting
        self.counted = min(voting, len(models)) if isinstance(voting, int) else len(models)

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        if not self.models:
            return Prediction(x.new_zeros(len(x), self.classes), x.new_zeros(len(x), dtype=torch.float64))
        outputs = stacked_outputs(self.models, x).double()
        calibrated = calibrated_votes(outputs, stacked(self.calibrations))
        votes, unknown = confident_votes(outputs)
        details = {
            "calibrated": calibrated.argmax(dim=1, keepdim=True),
            "confident": votes.argmax(dim=2).t().contiguous(),
        }
        if self.voting == "calibrated":
            return Prediction(calibrated.float(), -calibrated.amax(dim=1), details)
        counted = votes[self.counted - 1]
        # The smallest normal number keeps the logarithm finite where every model gives a class no chance.
        logits = counted.clamp_min(torch.finfo(torch.float32).tiny).log().float()
        return Prediction(logits, unknown[self.counted - 1], details)


@METHODS.add("distilled-fedov")
class DistilledFedOV(Distilled, FedOV):
    """FedOV taught to a single network on public unlabelled data."""

    class Params(FedOV.Params, DistilledParams):
        pass

    composes = ("objective", "score")
    digits = {"method": {"epochs": 20, "batch_size": 16, "lr": 0.003}, "data": {"public": 0.2}}
