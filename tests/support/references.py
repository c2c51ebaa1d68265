"""Training that one process does alone and many workers must equal: a model, its batches, and the lines both run."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, INNER, NUM_BLOCKS = 11, 6, 9, 3  # no width divides by 4: shards are padded
ROWS, LENGTH = 2, 3
"""Of one worker's batch: rows, and tokens of a row."""
MAX_NORM = 0.3
"""Small enough that gradients are clipped in most steps."""
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Adapted(nn.Module):
    """A frozen layer with a trainable one of low rank beside it (LoRA)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, 2, bias=False)
        self.lora_b = nn.Linear(2, base.out_features, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return self.base(hidden) + 2 * self.lora_b(self.lora_a(hidden))


class Block(nn.Module):
    """A repeated block: the unit of sharding."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first = nn.Linear(WIDTH, INNER, bias=False)
        self.second = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., WIDTH) -> the same shape."""
        return hidden + self.second(torch.tanh(self.first(self.norm(hidden))))


class Net(nn.Module):
    """A small language model without attention, whose forward can leave out, repeat and recompute blocks."""

    def __init__(self, *, tied: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        tokens: Tensor,  # (rows, LENGTH) int64
        *,
        without: tuple[int, ...] = (),
        repeats: int = 1,
        recompute: bool = False,
        fail_at: int | None = None,
    ) -> Tensor:
        """The logits (rows, LENGTH, VOCABULARY)."""
        hidden = self.embedding(tokens)
        for index, block in enumerate(self.blocks):
            if index == fail_at:
                raise ArithmeticError("the forward fails half-way")
            for _ in range(0 if index in without else repeats):
                hidden = checkpoint(block, hidden, use_reentrant=False) if recompute else block(hidden)
        return self.head(hidden)


def frozen_base(*, tied: bool = False) -> Net:
    """A model whose blocks alone are frozen."""
    net = Net(tied=tied)
    net.blocks.requires_grad_(False)
    return net


def adapted() -> Net:
    """A frozen model with adapters, as peft makes it."""
    net = Net().requires_grad_(False)
    for block in net.blocks:
        block.first, block.second = Adapted(block.first), Adapted(block.second)
    torch.manual_seed(1)
    for module in net.modules():
        if isinstance(module, Adapted):
            nn.init.normal_(module.lora_a.weight)
            nn.init.normal_(module.lora_b.weight)
    return net


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of the runs; its decay moves also what has no gradient to speak of."""
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1, foreach=True)


def batch(step: int, rank: int) -> Tensor:
    """A worker's tokens of a step, (ROWS, LENGTH + 1) int64: inputs and targets."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)


class Run:
    """A model in training. Alone it reads the batches of all workers, else those of its rank."""

    def __init__(
        self, model: nn.Module, num_workers: int, rank: int | None = None, make_optimizer: MakeOptimizer = adamw
    ) -> None:
        self.model = model
        self.is_alone = rank is None
        self.ranks = range(num_workers) if rank is None else (rank,)
        self.optimizer = make_optimizer(list(model.parameters()))
        self.losses: list[Tensor] = []
        """Of this process's batches, in order: of training and of evaluation."""
        self.norms: list[Tensor] = []
        """Of all gradients, before clipping."""

    def loss(self, step: int, **options: object) -> Tensor:
        """The mean loss over this process's rows of a step, and a record of it."""
        tokens = torch.cat([batch(step, rank) for rank in self.ranks])
        logits = self.model(tokens[:, :-1], **options)
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.losses.append(loss.detach().clone())
        return loss

    def step(self) -> None:
        """Clip, step, forget the gradients."""
        norm = clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.norms.append(whole(norm).detach().clone())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, step: int, **options: object) -> None:
        """A whole training step."""
        self.loss(step, **options).backward()
        self.step()

    def evaluate(
        self, step: int, mode: Callable[[], AbstractContextManager[object]] = torch.no_grad, **options: object
    ) -> None:
        """Record the loss of a step without training."""
        self.model.eval()
        with mode():
            self.loss(step, **options)
        self.model.train()

    @contextmanager
    def unsynchronised(self) -> Iterator[None]:
        """Gradients stay on each worker meanwhile (FSDP2's gradient accumulation)."""
        if not self.is_alone:
            self.model.set_requires_gradient_sync(False)
        yield
        if not self.is_alone:
            self.model.set_requires_gradient_sync(True)

    def values(self) -> dict[str, Tensor]:
        """Every parameter whole, by name; a collective of all workers."""
        return {name: whole(parameter).detach().clone() for name, parameter in self.model.named_parameters()}

    def edit(self, name: str, change: Callable[[Tensor], Tensor]) -> None:
        """Write a changed parameter through .data, only on workers whose own shard the change concerns."""
        parameter = self.model.get_parameter(name)
        changed = change(whole(parameter).detach().clone())
        local = parameter.data
        if isinstance(local, DTensor):
            changed = distribute_tensor(changed, local.device_mesh, local.placements, src_data_rank=None).to_local()
            local = local.to_local().data
        if not torch.equal(local.view(-1).view(torch.uint8), changed.reshape(-1).view(torch.uint8)):
            local.copy_(changed)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, on every worker; another as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """||found - wanted|| / ||wanted||, in float64; 0 if both are 0."""
    difference = torch.linalg.vector_norm(found.double() - wanted.double()).item()
    size = torch.linalg.vector_norm(wanted.double()).item()
    if difference == 0:
        return 0.0
    return difference / size if size else float("inf")
