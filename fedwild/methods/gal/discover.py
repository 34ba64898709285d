"""Phases `discover-1`, `discover-2`, ...: clients cluster their novel samples, and the server counts the classes.

The head grows by one row per novel class (Eq. 5 to 8).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import Client, Payload, Replies, Rng, Server, weights_of
from fedwild.core.classes import NOVEL
from fedwild.core.text import count
from fedwild.discovery import Clusters, Estimate, cluster_embeddings, row_noise
from fedwild.methods.gal.novelty import is_novel
from fedwild.methods.gal.stage import (
    Description,
    Discovery,
    Survey,
    count_labelled,
    head_of,
    inherited_rows,
    read_clusters,
    to_tensors,
)
from fedwild.models.inference import embeddings


class Discover(Survey):
    """One round per stage."""

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Return clusters of the samples that resemble no known class."""
        model, pool = self.method.network(payload, client), client.unlabelled_in(self.stage)
        z = embeddings(model, pool)
        rows, inherited = model.head.weight.detach().cpu(), inherited_rows(payload.info)
        found = z[is_novel(z, rows, payload.info["novelty"], inherited, self.params.r)].double().numpy()
        if not len(found):
            client.note("none of its unlabelled samples are novel" if len(pool) else "it has no unlabelled samples")
        number, seed = self.params.clusters_for(len(client.classes)), rng.sklearn("novel clusters")
        clusters, _ = cluster_embeddings(found, number, seed, self.params.min_count)
        info = {"samples": len(found), "pool": len(pool), "clusters": len(clusters)}
        return Payload.of(info, clusters=to_tensors(centroids=clusters.centroids, counts=clusters.counts))

    def merge(self, server: Server, replies: Replies) -> None:
        """Estimate the number of novel classes, register them and grow the head."""
        parts = {reply.client: read_clusters(reply.payload) for reply in replies}
        pool = Clusters.joined(list(parts.values()), head_of(server).shape[1])
        clients = np.repeat(list(parts), [len(part) for part in parts.values()])
        # Shuffled as in the paper: the estimate must not depend on which client sent a cluster.
        order = server.rng.numpy("shuffle").permutation(len(pool))
        pool, clients = pool.at(order), clients[order]
        description = Description.of(server.state)
        estimate = self.method.estimator.estimate(pool, description.known_classes(head_of(server)), server.rng)
        server.state.info.setdefault("estimates", []).append(estimate.to_json())
        before = server.state.group("model")
        server.state.put("anchor", before)
        if "origin" not in server.state:
            server.state.put("origin", before)
        if not estimate.number:
            server.note("no novel class found: too few unlabelled samples differ from the known classes")
            return
        names = self.register(server, estimate, clients, pool.counts)
        self.grow(server, torch.as_tensor(estimate.prototypes).float(), pool)
        server.state.info["bias"] = self.first_bias(server, description)
        found = count(estimate.number, "novel class", "novel classes")
        server.note(f"{found} ({estimate.low} to {estimate.high}) in {pool.counts.sum()} samples: {', '.join(names)}")

    def register(self, server: Server, estimate: Estimate, clients: np.ndarray, counts: np.ndarray) -> list[str]:
        """Add the novel classes to the registry, with the samples of each client, and return their names."""
        names = []
        for number in range(estimate.number):
            inside = estimate.assigned == number
            samples = {str(one): int(counts[inside & (clients == one)].sum()) for one in np.unique(clients[inside])}
            names.append(server.classes.free_name(NOVEL))
            server.classes.add(names[-1], NOVEL, server.step.index, self.stage, samples)
        return names

    def grow(self, server: Server, prototypes: Tensor, pool: Clusters) -> None:
        """Add a row to the head for every prototype (C, d) of the pool, and leave a record for the next phase."""
        anchor, head = server.state.group("model"), head_of(server)
        model = server.task.network(anchor, len(head), self.method.bias)
        rows = prototypes
        if self.params.init == "random":
            rows = torch.randn(prototypes.shape, generator=server.rng.torch("novel rows"))
        if self.params.rows == "scaled" or self.params.init == "random":
            # A row that is longer than the others has the largest logit for nearly every sample.
            rows = rows * (head.norm(dim=1).mean() / rows.norm(dim=1, keepdim=True).clamp_min(1e-12))
        model.grow_head(len(head) + len(rows), rows)
        server.state.put("model", weights_of(model))
        stretch = prototypes.norm(dim=1) / rows.norm(dim=1).clamp_min(1e-12)
        noise = row_noise(pool) if self.params.against_forgetting == "distillation" else 0.0
        Discovery(anchor, prototypes, stretch, torch.tensor(pool.clients), torch.tensor(noise)).put(server.state)

    def first_bias(self, server: Server, description: Description) -> float:
        """Return the bias against novel classes until the next description, from clusters of known samples."""
        counts, labelled = description.counts, count_labelled(server)
        if not len(counts) or not self.params.keep_known:
            return 0.0
        logits = description.centroids @ head_of(server).T
        margins = logits[:, labelled:].amax(1) - logits[:, :labelled].amax(1)
        order = margins.argsort()
        below = counts[order].double().cumsum(0) / counts.double().sum()
        last = int((below < self.params.keep_known).sum().clamp(max=len(below) - 1))
        return max(0.0, float(margins[order][last]))
