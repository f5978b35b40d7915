"""A network that is compiled as a whole, and again for other shapes, as in the tutorial of torch.compile."""

import torch

from carme_hub.training import here

net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Linear(64, 10)))
compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
optimizer = torch.optim.AdamW(net.parameters())
for step in range(1, 9):
    loss = compiled(torch.randn(16 * step, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    here.step(step, loss=loss)
print("compiled and trained")
