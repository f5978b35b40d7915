"""Code that trains with a changing number of ranks, and records each rank's samples; and the expected result."""

from __future__ import annotations

#: Pictures are numbers here, and the model is a line: what counts is which rank learned from which sample, and when.
BEGIN = """
import json, os, time, torch
from pathlib import Path
from carme_hub.training import here
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
SAMPLES, BATCH, EVERY, PAUSE = 96, 12, 2, 0.1
folder = Path(os.environ["CARME_RUN_FOLDER"])
out = (folder / f"seen-{here.node}-{os.getpid()}-{time.time_ns()}.jsonl").open("a", buffering=1)
inputs = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
targets = inputs @ torch.arange(1.0, 6.0)

def order(epoch):
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()

def begin():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

def loss_of(model, mine, count):
    return ((model(inputs[mine]).squeeze(1) - targets[mine]) ** 2).sum() / count

def note(**said):
    out.write(json.dumps({"at": time.time(), "rank": here.rank, "size": here.size, **said}) + "\\n")
    time.sleep(PAUSE)
"""
HOROVOD = (
    BEGIN
    + """
import horovod.torch as hvd
hvd.init()
model, optimizer = begin()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)

@hvd.elastic.run
def train(state):
    while not state.enough:
        whole = order(state.epoch)
        while state.done < SAMPLES:
            batch = whole[state.done : state.done + BATCH]
            mine = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            loss = loss_of(model, mine, len(batch))
            loss.backward()
            optimizer.step()
            total = hvd.allreduce(loss.detach(), op=hvd.Sum, name="loss").item()
            state.done, state.step = state.done + len(batch), state.step + 1
            note(epoch=state.epoch, step=state.step, mine=mine, loss=total)
            here.step(state.step, samples=len(mine), loss=total)
            if state.step % EVERY == 0:
                hvd.allreduce(torch.zeros(1), name="noted")  # a rank that dies before its note takes the step with it
            if state.step % EVERY == 0 and state.done < SAMPLES:
                state.commit()
        state.epoch, state.done = state.epoch + 1, 0
        enough = torch.tensor(float((folder / "enough").exists()))
        state.enough = hvd.allreduce(enough, op=hvd.Sum, name="enough").item() > 0
        state.commit()
    return state.epoch

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, done=0, step=0, enough=False)
epochs = train(state)
"""
)
TORCH = (
    BEGIN
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model, optimizer = begin()
ddp = torch.nn.parallel.DistributedDataParallel(model)
kept, place = folder / "kept.pt", {"epoch": 0, "done": 0, "step": 0}
if kept.exists():
    said = torch.load(kept)
    model.load_state_dict(said["model"])
    optimizer.load_state_dict(said["optimizer"])
    place = said["place"]
dist.barrier()

def save():
    dist.barrier()  # a rank that dies before its note takes the step with it
    if rank == 0:
        said = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "place": place}
        torch.save(said, folder / "kept.new")
        (folder / "kept.new").replace(kept)

enough = torch.zeros(1)
while not enough.item():
    whole = order(place["epoch"])
    while place["done"] < SAMPLES:
        batch = whole[place["done"] : place["done"] + BATCH]
        mine = batch[rank::size]
        optimizer.zero_grad()
        loss = loss_of(ddp, mine, len(batch))
        (loss * size).backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        place = {**place, "done": place["done"] + len(batch), "step": place["step"] + 1}
        note(epoch=place["epoch"], step=place["step"], mine=mine, loss=total.item())
        here.step(place["step"], samples=len(mine), loss=total.item())
        if place["step"] % EVERY == 0 and place["done"] < SAMPLES:
            save()
    place = {**place, "epoch": place["epoch"] + 1, "done": 0}
    save()
    enough = torch.tensor([float((folder / "enough").exists())])
    dist.all_reduce(enough)
epochs = place["epoch"]
dist.destroy_process_group()
"""
)
#: What one process alone learns, loss after loss.
ALONE = (
    BEGIN.replace("PAUSE = 96, 12, 2, 0.1", "PAUSE = 96, 12, 2, 0")
    + """
def alone(epochs):
    model, optimizer = begin()
    losses = []
    for epoch in range(epochs):
        whole = order(epoch)
        for start in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            loss = loss_of(model, whole[start : start + BATCH], BATCH)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
"""
)
SAMPLES, STEPS = 96, 8
#: A template on whatever ranks there are: the gradient of one step in float64, then its own training.
TEMPLATE = """
import json, os, pathlib, sys, torch
from carme_hub.training import here, templates
from carme_hub.training.digits import digits
torch.set_num_threads(1)
words = {"__name__": "template"}
exec(compile((templates.folder() / f"{NAME}.py").read_text(), NAME, "exec"), words)
device = words["join"]()
words["join"] = lambda: device
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
images, labels = digits(64)
model, optimizer = words["build"](device)
# Parts of different sizes, as when the ranks do not divide a step.
parts = [0, 7, 20, 41, 64] if here.size == 4 else [0, 64]
mine = slice(parts[here.rank], parts[here.rank + 1])
words["step"](model, optimizer, images[mine], labels[mine], 64)
gradient = torch.cat([each.grad.flatten() for each in model.parameters()]).tolist()
torch.set_default_dtype(torch.float32)
history = words["train"]()
if here.rank == 0:
    said = {"gradient": gradient, "history": history, "size": here.size}
    pathlib.Path(os.environ.get("CARME_RUN_FOLDER", "."), "said.json").write_text(json.dumps(said))
"""

#: Run torch's agent, and forge a stop that reaches it while torch closes its worker, which the stop reached before.
STOPPED_WHILE_A_WORKER_IS_CLOSED = r"""
import os, signal, sys, tempfile, time
from pathlib import Path
from torch.distributed.elastic.multiprocessing import tail_log
from carme_hub.training.elastic import torch
from carme_hub.training.elastic.membership import Assignment

class RendezvousOfOneWorker:
    name, starts = "w0-0-0", 0
    def wait(self):
        self.starts += 1
        if self.starts > 1:
            sys.exit("it was started again, though it was stopped")
        self.assignment = Assignment(1, 0, 1)
        return self.assignment
    def next_generation(self):
        return 1
    def report_death(self, number, status):
        print("death", status)

class ResultThatIsInterrupted:
    def result(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

close = tail_log.TailLog.stop
def stop(self):
    self._futs.append(ResultThatIsInterrupted())
    close(self)
tail_log.TailLog.stop = stop

dies = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
print("status", torch.run(RendezvousOfOneWorker(), 0, Path(tempfile.mkdtemp()), [sys.executable, "-c", dies]))
"""
