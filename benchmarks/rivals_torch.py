"""PyTorch's encoder and an update equal to DrQv2's here; run by rivals.py in an environment with PyTorch.

    torch/bin/python benchmarks/rivals_torch.py 48

Prints `name ms`, the best of several calls. 64 images, three stacked frames, 256-wide networks, 6 actions, one shifted
view per image, both cores. The update does the passes of ours: s and s' before the critic's step, s after it.
"""

import sys
import time

import torch
from torch import nn
from torch.nn.functional import mse_loss

BATCH, ACTIONS, WIDTH, LATENT, TAU, SHIFT = 64, 6, 256, 50, 0.01, 4


def encoder() -> nn.Sequential:
    layers = [nn.Conv2d(9, 32, 3, stride=2), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(32, 32, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten()).to(memory_format=torch.channels_last)


def trunk(features: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, LATENT), nn.LayerNorm(LATENT), nn.Tanh())


def head(inputs: int, outputs: int) -> nn.Sequential:
    hidden = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, outputs))


class Critic(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.trunk = trunk(features)
        self.heads = nn.ModuleList(head(LATENT + ACTIONS, 1) for _ in range(2))

    def forward(self, features, action):
        inputs = torch.cat([self.trunk(features), action], -1)
        return [q(inputs) for q in self.heads]


def shifted(images):
    """Every image padded with its border and cropped back, each at a place of its own, by indices."""
    count, _, size, _ = images.shape
    down, right = torch.randint(-SHIFT, SHIFT + 1, (2, count, 1))
    rows, columns = ((torch.arange(size) + by).clamp(0, size - 1) for by in (down, right))
    every = torch.arange(count)[:, None, None]
    return images.permute(0, 2, 3, 1)[every, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def scaled(images):
    return images.float() / 255


class DrQv2:
    def __init__(self, size: int):
        self.encoder = encoder()
        self.images = torch.randint(0, 255, (2, BATCH, size, size, 9), dtype=torch.uint8).permute(0, 1, 4, 2, 3)
        features = self.encoder(scaled(self.images[0])).shape[1]
        self.actor = nn.Sequential(trunk(features), head(LATENT, ACTIONS))
        self.critic, self.target = Critic(features), Critic(features)
        self.of_critic = torch.optim.Adam([*self.encoder.parameters(), *self.critic.parameters()], 1e-4)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), 1e-4)
        self.action, self.reward = torch.rand(BATCH, ACTIONS), torch.rand(BATCH, 1)

    def forward(self):
        with torch.no_grad():
            self.encoder(scaled(self.images[0]))

    def gradients(self):
        self.encoder.zero_grad()
        (self.encoder(scaled(self.images[0])) ** 2).sum().backward()

    def act(self, features):
        mean = torch.tanh(self.actor(features))
        return (mean + (0.2 * torch.randn_like(mean)).clamp(-0.3, 0.3)).clamp(-1, 1)

    def update(self):
        now, later = (scaled(shifted(x)) for x in self.images)
        with torch.no_grad():
            after = self.encoder(later)
            wanted = self.reward + 0.97 * torch.minimum(*self.target(after, self.act(after)))
        loss = sum(mse_loss(q, wanted) for q in self.critic(self.encoder(now), self.action))
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()
        with torch.no_grad():
            features = self.encoder(now)
        loss = -torch.minimum(*self.critic(features, self.act(features))).mean()
        self.of_actor.zero_grad()
        loss.backward()
        self.of_actor.step()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.critic.parameters()):
                old.lerp_(new, TAU)


def main() -> None:
    torch.set_num_threads(2)
    size = int(sys.argv[1])
    agent, matrix = DrQv2(size), torch.ones(1024, 1024)
    calls = {"product": lambda: matrix @ matrix, "forward": agent.forward}
    calls |= {"gradients": agent.gradients, "update": agent.update}
    best = dict.fromkeys(calls, float("inf"))
    for repeat in range(15):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - began)) if repeat > 1 else best[name]
    for name, ms in best.items():
        print(name, ms)


if __name__ == "__main__":
    main()
