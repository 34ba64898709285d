"""FedOV. Diao, Li, He: Towards addressing label skews in one-shot federated learning. ICLR 2023.

Each client trains a classifier over all K classes of the federation and "unknown" from its own random initialisation
and uploads it once (Algorithm 1). The server keeps them all and lets them vote. With `objective.name=proser` or
`objective.enhanced=false` this is the paper's ablation (Table 2). The paper's vote is `voting="all"`; the default
corrects the weakness that its Appendix A.3 names, see `fedwild/methods/fedov/voting.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.contract import Answering, Client, Groups, Outcome, Payload, Prediction, Predictor, Replies, Rng, Server
from fedwild.core.errors import BadReply, UserError
from fedwild.methods.distilled import Distilled, DistilledParams
from fedwild.methods.fedov.voting import (
    Calibration,
    calibrate,
    calibrated_votes,
    confident_votes,
    stack_calibrations,
    stacked_outputs,
)
from fedwild.methods.one_shot import OneShot, OneShotTraining, Upload
from fedwild.methods.registry import METHODS
from fedwild.models import Network
from fedwild.openset import UNKNOWN, DecisionSettings

Voting = Literal["calibrated", "all"] | Annotated[int, Field(ge=1)]
# All k are computed; of large ensembles only these are reported.
REPORTED_K = (*range(1, 11), 20, 40, 80, 160)


class CalibratedUpload(Upload):
    """The upload of a model together with its calibration on the client's own samples."""

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model, reply = self.train(client, rng)
        calibration = calibrate(model, client.train, client.validation, len(client.classes))
        reply.put("calibration", calibration._asdict())
        return reply

    def expects(self, server: Server) -> Groups:
        classes = len(server.classes)
        like = Calibration(torch.empty(classes), torch.empty(classes, dtype=torch.int64))
        return {**super().expects(server), "calibration": like._asdict()}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        counts = reply.group("calibration")["counts"]
        if int(counts.min()) < 0 or int(counts.sum()) != reply.info["samples"]:
            raise BadReply("calibration counts do not add up to the number of samples")

    def merge(self, server: Server, replies: Replies) -> None:
        super().merge(server, replies)
        for reply in replies:
            server.state.add(f"calibrations/{reply.client}", reply.payload.group("calibration"))


@METHODS.add("fedov")
class FedOV(OneShot):
    """Lets open-set classifiers, uploaded once, vote on samples that they do not consider unknown."""

    class Params(DecisionSettings, OneShotTraining):
        voting: Voting = Field(
            "calibrated", description="calibrated, all (as in the paper), or a number k: the k most confident models"
        )

    parts = {"objective": {"name": "outlier-aware"}}
    upload_type = CalibratedUpload
    params: Params

    def check(self, network: Network | None, start_from: str | None) -> None:
        if self.objective.extra_outputs != 1:
            raise UserError(
                f"objective.name = {self.objective.name!r} is not allowed: method {self.name!r} needs an objective "
                "that trains an unknown output, such as outlier-aware or proser."
            )
        if self.params.decision == "argmax" and self.params.voting == "calibrated":
            raise UserError(
                "method.voting = 'calibrated' is not allowed with method.decision = 'argmax': its scores are not "
                "probabilities of K + 1 outputs. Use method.voting = 'all' or a number."
            )

    def forget(self, server: Server) -> None:
        super().forget(server)
        server.state.drop("calibrations")

    def answers(self, server: Server) -> Answering:
        """The votes of all clients with training samples."""

        def predictor(client: Client | None) -> Predictor:
            voters, members = self.voters(server), server.state.subgroups("calibrations")
            calibrations = [Calibration(**members[name]) for name in voters]
            return OpenVote(voters, calibrations, len(server.classes), self.params)

        return Answering(predictor, server.clients, threshold=self.params.threshold)

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return closed accuracy under every voting rule, since one pass through the models gives them all."""
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
    """The votes of open-set classifiers. A sample without evidence for any class is unknown."""

    def __init__(
        self,
        members: Mapping[str, Network],
        calibrations: Sequence[Calibration],
        classes: int,
        settings: FedOV.Params,
    ) -> None:
        self.members = {client: model.eval() for client, model in members.items()}
        self.calibrations = list(calibrations)
        self.classes = classes
        self.settings = settings
        voting = settings.voting
        self.counted = min(voting, len(members)) if isinstance(voting, int) else len(members)

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        if not self.members:
            return Prediction(x.new_zeros(len(x), self.classes), x.new_zeros(len(x), dtype=torch.float64))
        outputs = stacked_outputs(list(self.members.values()), x).double()
        calibrated = calibrated_votes(outputs, stack_calibrations(self.calibrations))
        votes, unknown = confident_votes(outputs)
        details = {
            "calibrated": calibrated.argmax(dim=1, keepdim=True),
            "confident": votes.argmax(dim=2).t().contiguous(),
        }
        if self.settings.voting == "calibrated":
            return Prediction(calibrated.float(), -calibrated.amax(dim=1), details)
        counted, score = votes[self.counted - 1], unknown[self.counted - 1]
        if self.settings.decision == "argmax":
            # Above 0 exactly where unknown has the largest of the K + 1 mean probabilities.
            score = score - counted.amax(dim=1)
        # The smallest normal number keeps the logarithm finite where no model gives a class any probability.
        logits = counted.clamp_min(torch.finfo(torch.float32).tiny).log().float()
        return Prediction(logits, score, details)


@METHODS.add("distilled-fedov")
class DistilledFedOV(Distilled, FedOV):
    """FedOV, distilled into a single network on public unlabelled data."""

    class Params(FedOV.Params, DistilledParams):
        pass

    parts = {"objective": {"name": "outlier-aware"}, "score": {}}
    params: Params
