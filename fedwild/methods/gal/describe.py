"""Phase `describe`: clients describe their known samples, and how much the unlabelled pool resembles them.

The server derives three things: the cosine below which a sample is novel, the distances between clusters of one known
class, and the bias against novel classes.
"""

from __future__ import annotations

import numpy as np
import torch

from fedwild.contract import Client, Groups, Payload, Replies, Rng, Server, Tensors
from fedwild.core.errors import BadReply
from fedwild.core.text import percent
from fedwild.discovery import Clusters, cluster_embeddings
from fedwild.methods.gal.novelty import BINS, cosine_histogram, max_cosine, max_known_share, novelty_threshold
from fedwild.methods.gal.stage import Description, Survey, count_labelled, head_of, read_clusters, to_tensors
from fedwild.models.inference import embeddings
from fedwild.openset import threshold_at_acceptance


class Describe(Survey):
    """One round before each stage and one after the last."""

    has_labels = True

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Return histograms of cosines, clusters of validation samples, and margins of novel over labelled classes."""
        model, labelled = self.method.network(payload, client), payload.info["labelled"]
        rows = model.head.weight.detach().cpu()
        # A discovered class may have got the name of a label: its samples are not known ones.
        known = client.validation.take(torch.nonzero(client.validation.y < labelled).flatten())
        z, y = embeddings(model, known), known.y
        pool = embeddings(model, client.unlabelled_in(self.stage))
        count, seed = self.params.clusters_for(len(rows)), rng.sklearn("known clusters")
        clusters, assigned = cluster_embeddings(z.double().numpy(), count, seed, self.params.min_known_count)
        labels = np.zeros((len(clusters), labelled), dtype=np.int64)
        np.add.at(labels, (assigned[assigned >= 0], y.numpy()[assigned >= 0]), 1)
        cosines = {name: cosine_histogram(max_cosine(of, rows)) for name, of in (("known", z), ("pool", pool))}
        sent = to_tensors(centroids=clusters.centroids, counts=clusters.counts, labels=labels)
        reply = Payload.of({"samples": len(z)}, cosines=cosines, clusters=sent)
        if len(rows) > labelled:
            logits = z @ rows.T
            margins = logits[:, labelled:].amax(1) - logits[:, :labelled].amax(1)
            # Sorted, so that they do not reveal the order of samples.
            reply.put("margins", {"novel": margins.sort().values})
        return reply

    def expects(self, server: Server) -> Groups:
        counts = torch.zeros(BINS, device="meta")
        return {"cosines": {"known": counts, "pool": counts}}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        check_margins(reply.group("margins"), reply.info["samples"])
        check_cosines(reply.group("cosines"), reply.info["samples"])

    def merge(self, server: Server, replies: Replies) -> None:
        """Set the novelty threshold and the bias, and keep the clusters of known samples."""
        known, pool = np.zeros(BINS), np.zeros(BINS)
        parts: list[Clusters] = []
        # The first entries give the shapes if no client is present or has validation samples.
        labels = [np.empty((0, count_labelled(server)), dtype=np.int64)]
        margins = [np.empty(0)]
        for reply in replies:
            cosines = reply.payload.group("cosines")
            known += cosines["known"].numpy()
            pool += cosines["pool"].numpy()
            parts.append(read_clusters(reply.payload))
            labels.append(reply.payload.group("clusters")["labels"].numpy().copy())
            margins += [m.double().numpy().copy() for m in reply.payload.group("margins").values()]
        novelty = novelty_threshold(known, pool, self.params.novelty, self.params.accept, self.params.r)
        joined = Clusters.joined(parts, head_of(server).shape[1])
        tensors = to_tensors(centroids=joined.centroids, counts=joined.counts, labels=np.concatenate(labels))
        Description(novelty, self.bias(np.concatenate(margins)), **tensors).put(server.state)
        if pool.sum():
            share = f", at most {percent(max_known_share(known, pool), 0)} of them known" if known.sum() else ""
            server.note(f"novelty threshold {novelty:.2f}: {int(pool.sum())} unlabelled samples{share}")

    def bias(self, margins: np.ndarray) -> float:
        """Return the smallest bias >= 0 with which the share `keep_known` of known samples keep a known answer."""
        if not len(margins) or not self.params.keep_known:
            return 0.0
        return max(0.0, threshold_at_acceptance(margins, self.params.keep_known))


def check_cosines(group: Tensors, samples: int) -> None:
    """Reject histograms with negative counts, or that do not count all validation samples."""
    if any(float(counts.min()) < 0 for counts in group.values()) or float(group["known"].sum()) != samples:
        raise BadReply(f"cosines are not histograms of samples, of which {samples} are known")


def check_margins(group: Tensors, samples: int) -> None:
    """Reject margins that are not one number per sample."""
    for name, margins in group.items():
        if name != "novel" or margins.shape != (samples,) or not margins.is_floating_point():
            raise BadReply(f"margins/{name} is {tuple(margins.shape)} {margins.dtype}, expected ({samples},) float32")
