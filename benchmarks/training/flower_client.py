"""The client of Flower's contestant, in a module of its own so that Ray's actors import it."""

from __future__ import annotations

import functools
import json
import os

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from workloads import WORKS, Work, logits


@functools.cache
def sets() -> tuple[Work, list[TensorDataset]]:
    """Return the work and every client's examples, once in each of Ray's actors."""
    torch.set_num_threads(1)
    work = WORKS[os.environ["GAITWAY_BENCH_WORK"]](**json.loads(os.environ["GAITWAY_BENCH_OPTIONS"]))
    return work, [TensorDataset(torch.from_numpy(each.x), torch.from_numpy(each.y)) for each in work.clients()]


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train one client."""
    work, all_examples = sets()
    examples = all_examples[int(context.node_config["partition-id"])]
    network = work.network().train()
    prototypes = work.method == "fedproto"
    mine = context.state.array_records.get("network") if prototypes else message.content["arrays"]
    if mine is not None:
        network.load_state_dict(mine.to_torch_state_dict())
    shared = message.content["arrays"].to_torch_state_dict() if prototypes else {}
    optimizer, kept = work.new_optimizer(network.parameters()), (_Sums(work) if prototypes else None)
    for _ in range(work.epochs):
        for x, y in DataLoader(examples, work.batch, shuffle=True):
            optimizer.zero_grad()
            if kept is None:
                F.cross_entropy(logits(network, x), y).backward()
            else:
                kept.step(network, x, y, shared)
            optimizer.step()
    if kept is not None:
        context.state["network"] = ArrayRecord(network.state_dict())
    arrays = ArrayRecord(network.state_dict() if kept is None else kept.means())
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(examples)})})
    return Message(content=content, reply_to=message)


class _Sums:
    """Prototypes by sums over a batch, as a careful user would write them."""

    def __init__(self, work: Work) -> None:
        self.total, self.count = None, torch.zeros(work.classes)

    def step(self, network: torch.nn.Module, x: Tensor, y: Tensor, shared: dict[str, Tensor]) -> None:
        output = network(x)
        loss = F.cross_entropy(output.logits, y)
        if shared:
            known = shared["known"][y]
            loss = loss + (((output.features - shared["prototypes"][y]) ** 2).mean(1) * known).mean()
        loss.backward()
        features = output.features.detach()
        if self.total is None:
            self.total = torch.zeros(len(self.count), features.shape[1])
        self.total.index_add_(0, y, features)
        self.count += torch.bincount(y, minlength=len(self.count))

    def means(self) -> dict[str, Tensor]:
        return {"prototypes": self.total / self.count.clamp(min=1)[:, None], "known": (self.count > 0).float()}
