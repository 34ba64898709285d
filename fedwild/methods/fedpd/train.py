"""FedPD's training round: local parameter disentanglement (section 4.1), then global alignment (section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from fedwild.aggregation.means import by_samples, equally
from fedwild.contract import Client, Groups, Payload, Replies, Reply, Rng, Server
from fedwild.core.bits import pack_bits, packed_spec, unpack_bits
from fedwild.core.errors import BadReply
from fedwild.methods.fedavg import AveragingRounds
from fedwild.methods.fedpd.labels import compare_labels
from fedwild.methods.fedpd.parts import SUBNETWORKS, Alignment, Disentangled, PartMeans, RunningMean, align, keep_order
from fedwild.methods.fedpd.stages import closed_rounds, in_stage
from fedwild.methods.fedpd.subnetworks import Importance, neuron_shares, subnetwork_size, top_mask, weight_names
from fedwild.methods.own_start import starts_alone
from fedwild.models.norms import norm_keys
from fedwild.training import Objective, RoundTraining

if TYPE_CHECKING:
    from fedwild.methods.fedpd.method import FedPD


class Train(AveragingRounds):
    """Clients train and find their subnetworks; the server aligns their neurons and averages the models."""

    method: FedPD
    params: FedPD.Params

    def send(self, server: Server, client: str) -> Payload:
        return self.method.request(server, client)

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        if starts_alone(self.params.start, client.step):
            model = client.task.build(self.method.outputs(len(client.classes)), rng)
        else:
            model = self.method.network(payload, client)
        if self.params.importance == "none":
            reply = self.train(model, payload, client, rng)
        else:
            importance = Importance(model, model.graph(), self.params.importance)
            reply = self.train(model, payload, client, rng, importance)
            self.add_subnetworks(reply, importance)
        reply.info["labels"] = torch.bincount(client.train.y, minlength=len(client.classes)).tolist()
        return reply

    def in_round(self, round_: int) -> tuple[RoundTraining, Objective]:
        settings, objective = super().in_round(round_)
        if self.params.stages == "one" or self.rounds == 1:
            return settings, objective
        return in_stage(settings, objective, round_ < closed_rounds(self.rounds, self.params.closed_share))

    def add_subnetworks(self, reply: Payload, importance: Importance) -> None:
        """Add the closed-set and the open-set subnetwork (Eq. 6 and 7) to a reply, as packed bits."""
        close, open_ = (
            {weight: top_mask(score, self.params.ratio) for weight, score in scores.items()}
            for scores in (importance.close, importance.open)
        )
        reply.put("close", pack_bits(close))
        reply.put("open", pack_bits(open_))
        reply.info["mask_bytes"] = sum(bits.numel() for name in SUBNETWORKS for bits in reply.group(name).values())
        # For the log: the share of weights that are in both subnetworks, in layer order.
        reply.info["overlap"] = [round(float((close[name] & open_[name]).float().mean()), 4) for name in close]

    def expects(self, server: Server) -> Groups:
        groups = super().expects(server)
        if self.params.importance == "none":
            return groups
        masks = packed_spec(groups["model"], weight_names(self.method.graph(server)))
        return {**groups, **dict.fromkeys(SUBNETWORKS, masks)}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        labels, weights = reply.info.get("labels", ()), reply.group("model")
        are_counts = isinstance(labels, list) and all(type(count) is int and count >= 0 for count in labels)
        if not are_counts or len(labels) != len(server.classes) or sum(labels) != reply.info["samples"]:
            raise BadReply("info 'labels' must have a count for each class, and the counts must sum to 'samples'")
        for name in SUBNETWORKS:
            for weight, mask in unpack_bits(reply.group(name), weights).items():
                expected, found = subnetwork_size(self.params.ratio, mask.numel()), int(mask.sum())
                if found != expected:
                    raise BadReply(f"the {name} mask of {weight!r} keeps {found} weights, expected {expected}")

    def weigh(self, reply: Reply) -> float:
        return equally(reply) if self.params.average == "equal" else by_samples(reply)

    def merge(self, server: Server, replies: Replies) -> None:
        self.compare_labels(server, replies)
        parts = PartMeans() if self.method.has_own_weights(server) else None
        aligned = self.align_replies(server, replies, parts)
        mean = self.method.aggregation.update(server, aligned, "model", self.weigh)
        if mean is not None and parts is not None:
            server.state.put("parts", parts.means(mean))
        self.correction.merge(server, replies)

    def compare_labels(self, server: Server, replies: Replies) -> None:
        """Decide whether the label distributions of all clients so far are similar, and log every change."""
        counts = {reply.client: torch.tensor(reply.payload.info["labels"]) for reply in replies if reply.samples}
        server.state.add("labels", counts)
        so_far = server.state.group("labels")
        if not so_far:
            return
        distances = compare_labels(torch.stack([so_far[client] for client in sorted(so_far)]))
        alike = distances.are_similar
        if alike == server.state.info.get("alike"):
            return
        server.state.info["alike"] = alike
        self.method.drop_own_weights(server)
        if "auto" in (self.params.mean, self.params.norms):
            result = "similar" if alike else "different"
            models = "every client gets its own model" if alike else "all clients get the same model"
            distance = f"distance {distances.found:.2f}, by chance {distances.by_chance:.2f}"
            server.note(f"the clients' label distributions are {result} ({distance}): {models}")

    def align_replies(self, server: Server, replies: Replies, parts: PartMeans | None) -> Iterator[Reply]:
        """Yield the replies of clients with samples, their neurons in a common order."""
        graph, info, p = self.method.graph(server), server.state.info, self.params
        alignment = Alignment(graph, self.method.solver(), p.sweeps)
        info["moved"] = {}
        chosen, fixed = self.fixed_target(replies)
        so_far = RunningMean()
        for reply in replies:
            if not reply.samples:
                continue
            model = Disentangled.from_payload(reply.payload)
            if model.close:
                shares = {name: neuron_shares(model.close[name], model.open[name]) for name in model.close}
                server.state.put(f"shares/{reply.client}", shares)
            target = fixed if fixed is not None else Disentangled(so_far.mean(), {}, {})
            # The target itself keeps its order.
            stays = reply.client == chosen or p.align == "none" or not target.state
            result = keep_order(model, p.rest) if stays else align(alignment, model, target, p.maps, p.rest)
            so_far.add(result.state)
            if self.method.has_own_norms(server):
                norms = {name: result.state[name] for name in norm_keys(result.state)}
                server.state.put(f"norms/{reply.client}", norms)
            if parts is not None:
                ours = Disentangled(result.state, *(graph.permute(m, result.maps) for m in (model.close, model.open)))
                parts.add(ours, self.weigh(reply))
                server.state.put(f"masks/{reply.client}/close", pack_bits(ours.close))
                server.state.put(f"masks/{reply.client}/open", pack_bits(ours.open))
            info["moved"][reply.client] = result.moved
            yield Reply(reply.client, Payload.of(reply.payload.info, model=result.state))

    def fixed_target(self, replies: Replies) -> tuple[str | None, Disentangled | None]:
        """Return the client that all others are aligned to, and its model; None with a running mean as target."""
        if self.params.target == "mean" or self.params.align == "none":
            return None, None
        givers = [reply.client for reply in replies if reply.samples]
        chosen = givers[self.params.target % len(givers)] if givers else None
        models = (Disentangled.from_payload(reply.payload) for reply in replies if reply.client == chosen)
        return chosen, next(models, None)
