"""Functions that --model names in the tests: torch modules, and what is none."""

import torch
from torch import nn

IMAGES = (8, 3, 32, 32)


class Residual(nn.Module):
    """A block of ResNet's kind: two convolutions beside a projection."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.projection = nn.Conv2d(inputs, outputs, 1, 2, bias=False)

    def forward(self, images):
        inner = torch.relu(self.bn1(self.conv1(images)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.projection(images))


def resnet_like():
    """Eight images of 32 x 32 through two blocks."""
    blocks = Residual(3, 16), Residual(16, 32)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), IMAGES


class Tied(nn.Module):
    """Tokens through one layer, and the tokens' table as the head."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.inner(self.table(ids)))


def tied():
    """A module alone, which takes tokens."""
    return Tied()


def attention():
    """A module whose projection is read by the module around it; three inputs by name."""
    names = ("query", "key", "value")
    return nn.MultiheadAttention(64, 4, batch_first=True), {name: torch.zeros(2, 5, 64) for name in names}


def dropped():
    """Linear, dropout, linear."""
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)), (2, 4)


def frozen():
    """The first of two layers learns nothing."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    return module, (2, 4)


def from_values():
    """Built by looking at values, which the meta device lacks."""
    width = int(torch.ones(8).sum().item())
    return nn.Linear(width, width), (1, width)


def without_parameters():
    return nn.ReLU(), (1, 4)


def a_number():
    return 5


def failing():
    raise KeyError("weights")


def of_other_inputs():
    return nn.Linear(4, 4), (2, 5)


def of_wrong_inputs():
    return nn.Linear(4, 4), "images"


def of_no_sample():
    return nn.Linear(4, 4), torch.zeros(())


def without_products():
    return nn.Embedding(10, 4), torch.zeros(1, 3, dtype=torch.int64)


class ByValue(nn.Linear):
    """A forward that looks at a value."""

    def forward(self, inputs):
        return super().forward(inputs) * inputs.sum().item()


def by_value():
    return ByValue(4, 4), (2, 4)


class Detached(nn.Linear):
    """A forward that nothing can be learned from."""

    def forward(self, inputs):
        return super().forward(inputs).detach()


def detached():
    return Detached(4, 4), (2, 4)
