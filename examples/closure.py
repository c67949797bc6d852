"""MeZO on any PyTorch module: a closure that returns a number is all it needs."""

import torch
import torch.nn.functional as F
from torch import nn

import noback

torch.manual_seed(0)
torch.set_num_threads(1)  # a model this small gains nothing from threads
points = torch.rand(256, 2) * 2 - 1
inside = (points.norm(dim=1) < 0.7).long()  # is a point inside the circle?

model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
model.eval()  # no dropout: both sides of a direction must see the same function
optimizer = noback.MeZO(model, lr=0.3, eps=1e-3, directions=4, seed=0)


def loss() -> torch.Tensor:
    return F.cross_entropy(model(points), inside)


for step in range(401):
    value = optimizer.step(loss)
    if step % 100 == 0:
        print(f"step {step:4d}  loss {value:.3f}")

right = (model(points).argmax(dim=1) == inside).float().mean()
print(f"{right:.1%} of the points are answered right; no gradient was taken")
