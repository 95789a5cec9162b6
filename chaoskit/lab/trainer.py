"""
The lab's training: a small transformer under torchrun, plain DDP over gloo on the CPU.

A standalone script, copied to nodes and run there, so it imports nothing but torch and the standard library, and torch
only after the first line is out. It behaves as a careful real trainer does: data that depends on the step and the
sample alone, never on the world size; checkpoints that are whole or absent; resume from the newest that can be read;
one plain line a step from rank 0, written at once. Beside its log it keeps its own ground truth, which only tests read.

    torchrun ... trainer.py --checkpoints /ckpt/run1 --every 25

What it says, one line each (rank 0 unless a rank is named):

    chaoskit-trainer start rank 2 restart 1 pid 345     the process was born
    group up rank 0 world 4                             the process group exists
    loaded step 100 | no checkpoint                     where it goes on from
    step 101 loss 5.4300 batch 32                       a step is done on every rank
    saved step 125                                      a checkpoint is durable
    failed rank 2 after step 130: ...                   a collective failed, the process ends
    stopped rank 2 after step 130                       SIGTERM
    done step 1000
"""

import argparse
import io
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RESTART = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
BORN = time.monotonic()
GPU_CLIENTS = Path("/run/chaoskit-gpu/clients")
"""Where a lab node's simulated GPUs note who computes on them; the driver slows down who stands there by the GPU's clock."""

STOPPED = 128 + signal.SIGTERM
"""Exit status after SIGTERM; 0 would tell torchrun that this rank is done and let it wait for the others."""


def say(text: str) -> None:
    """Write one line with one call, so that lines of several processes never mix and none waits in a buffer."""
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    # Before torch is imported, which takes seconds: the birth is told when it happens, and every thread that torch may
    # start inherits the blocked SIGTERM, which `Life` waits for.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    say(f"chaoskit-trainer start rank {RANK} restart {RESTART} pid {os.getpid()}")

import torch  # noqa: E402 - see above
from torch import Tensor, distributed, nn  # noqa: E402 - see above
from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402 - see above
from torch.nn.parallel import DistributedDataParallel  # noqa: E402 - see above


class Truth:
    """The ground truth of one rank: JSON lines of this node's monotonic clock, event and step."""

    def __init__(self, folder: str | None) -> None:
        self.file: TextIO | None = None
        if folder:
            path = Path(folder)
            path.mkdir(parents=True, exist_ok=True)
            self.file = (path / f"rank{RANK}.{socket.gethostname()}.jsonl").open("a", encoding="ascii")

    def note(self, event: str, step: int, t: float | None = None, **more: Any) -> None:
        """Stamp an event, now when no stamp is given."""
        if self.file:
            stamp = time.monotonic() if t is None else t
            self.file.write(json.dumps({"t": stamp, "event": event, "step": step, **more}) + "\n")
            self.file.flush()


class Life:
    """This process's life: the last step done, and a thread that ends it on SIGTERM even while a collective hangs."""

    def __init__(self, truth: Truth) -> None:
        self.step = 0
        self.saving = threading.Lock()
        self.truth = truth

    def watch_sigterm(self) -> None:
        """Wait for SIGTERM in a thread of its own; a blocked collective would keep a handler from running."""
        threading.Thread(target=self._stop_on_sigterm, daemon=True).start()

    def _stop_on_sigterm(self) -> None:
        signal.sigwait({signal.SIGTERM})
        # A save under way is let through; it is atomic anyhow, so a stuck disk doesn't hold us.
        self.saving.acquire(timeout=5)
        self.truth.note("stopped", self.step)
        say(f"stopped rank {RANK} after step {self.step}")
        os._exit(STOPPED)


def parse_args() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="chaoskit's lab training")
    parser.add_argument("--hidden", type=int, default=136, help="width of the model")
    parser.add_argument("--layers", type=int, default=2, help="transformer blocks")
    parser.add_argument("--heads", type=int, default=4, help="attention heads a block")
    parser.add_argument("--vocab", type=int, default=128, help="number of tokens")
    parser.add_argument("--sequence", type=int, default=8, help="tokens a sample")
    parser.add_argument("--global-batch", type=int, default=32, help="samples a step over all ranks")
    parser.add_argument("--compute", type=int, default=0, help="matrix products a step, for nothing but the fixed work")
    parser.add_argument("--gpu-share", type=float, default=1.0, help="how much of the simulated GPU's time this rank takes")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--seed", type=int, default=7, help="seed of the weights and the data")
    parser.add_argument("--steps", type=int, default=1_000_000, help="last step")
    parser.add_argument("--every", type=int, default=25, help="steps from one checkpoint to the next")
    parser.add_argument("--checkpoints", required=True, help="directory of the checkpoints, seen by every node")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds until a silent peer counts as dead")
    parser.add_argument("--truth", help="directory of the ground truth, for tests")
    return parser.parse_args()


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, both residual."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.feed = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, hidden) to the same shape."""
        batch, length, hidden = x.shape
        shape = (batch, length, self.heads, hidden // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        fed: Tensor = self.feed(self.norm2(x))
        return x + fed


class Gpt(nn.Module):
    """A small decoder-only transformer; the same weights on every rank."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        torch.manual_seed(args.seed)
        self.token, self.place = nn.Embedding(args.vocab, args.hidden), nn.Embedding(args.sequence, args.hidden)
        self.blocks = nn.Sequential(*(Block(args.hidden, args.heads) for _ in range(args.layers)))
        self.norm, self.head = nn.LayerNorm(args.hidden), nn.Linear(args.hidden, args.vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, length) to the logits of each next token (batch, length, vocab)."""
        places = self.place(torch.arange(tokens.shape[1]))
        logits: Tensor = self.head(self.norm(self.blocks(self.token(tokens) + places)))
        return logits


def batch_of(args: argparse.Namespace, step: int) -> Tensor:
    """
    Return this rank's share of the step's samples, shape (samples, sequence + 1).

    The whole global batch is drawn from the step's own seed and then cut by sample index, so what a sample is
    doesn't depend on how many ranks there are. Each one counts on from a start by a stride, which can be learned.
    """
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    start = torch.randint(args.vocab, (args.global_batch, 1), generator=generator)
    stride = torch.randint(1, 8, (args.global_batch, 1), generator=generator)
    tokens = (start + stride * torch.arange(args.sequence + 1)) % args.vocab
    share: Tensor = tokens[args.global_batch * RANK // WORLD : args.global_batch * (RANK + 1) // WORLD]
    return share


NAME = re.compile(r"step-(\d+)\.pt")


class Checkpoints:
    """A directory of `step-N.pt` files and a file `latest` that names the newest; written whole or not at all."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint durably, then point `latest` at it."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self._replace(f"step-{step}.pt", buffer.getvalue())
        self._replace("latest", f"step-{step}.pt\n".encode())
        self._keep(3)

    def _replace(self, name: str, data: bytes) -> None:
        temporary = self.folder / f".{name}.tmp"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.folder / name)
        self._sync_folder()

    def _sync_folder(self) -> None:
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints that are there, the one `latest` names first, then newest first."""
        found = sorted((int(match[1]) for path in self.folder.iterdir() if (match := NAME.fullmatch(path.name))), reverse=True)
        try:
            named = NAME.fullmatch((self.folder / "latest").read_text().strip())
        except FileNotFoundError:
            return found
        return sorted(found, key=lambda step: step != int(named[1])) if named else found

    def _keep(self, count: int) -> None:
        for step in sorted(self.steps(), reverse=True)[count:]:
            (self.folder / f"step-{step}.pt").unlink(missing_ok=True)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Return the newest checkpoint that can be read, as (step, state); None when there is none."""
        for step in self.steps():
            try:
                return step, torch.load(self.folder / f"step-{step}.pt", weights_only=True)
            except Exception as error:  # noqa: BLE001 - whatever a torn file does to the unpickler, an older one may be whole
                say(f"warning: checkpoint of step {step} cannot be read: {type(error).__name__}: {error}".replace("\n", " "))
        return None


class Work:
    """A fixed amount of work a step: products of the same two matrices, which no cache, step or rank makes cheaper."""

    def __init__(self, products: int, size: int = 192) -> None:
        self.products = products
        self.left, self.right, self.out = torch.eye(size), torch.full((size, size), 0.5), torch.empty(size, size)

    def do(self) -> None:
        """Do it."""
        for _ in range(self.products):
            torch.mm(self.left, self.right, out=self.out)


class Trainer:
    """The model under DDP with its momentum, and the step it has reached."""

    def __init__(self, args: argparse.Namespace, life: Life) -> None:
        self.args, self.life = args, life
        self.work = Work(args.compute)
        self.model = Gpt(args)
        self.momentum = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        self.checkpoints = Checkpoints(args.checkpoints) if RANK == 0 else None
        life.step = self._resume()
        # DDP broadcasts rank 0's weights here, so that only rank 0's view of the checkpoints counts.
        self.parallel = DistributedDataParallel(self.model, bucket_cap_mb=64, gradient_as_bucket_view=True)
        life.truth.note("loaded", life.step)
        if RANK == 0:
            say(f"loaded step {life.step}" if life.step else "no checkpoint")

    def _resume(self) -> int:
        found = self.checkpoints.load() if self.checkpoints else None
        if found:
            self.model.load_state_dict(found[1]["model"])
            self.momentum = found[1]["momentum"]
        step = torch.tensor([found[0] if found else 0])
        distributed.broadcast(step, src=0)
        if int(step):
            flat = torch.cat([buffer.flatten() for buffer in self.momentum])
            distributed.broadcast(flat, src=0)
            parts = torch.split(flat, [buffer.numel() for buffer in self.momentum])
            self.momentum = [part.view_as(buffer).clone() for part, buffer in zip(parts, self.momentum, strict=True)]
        return int(step)

    def step(self) -> float:
        """Do one step on every rank; return the mean loss of the global batch."""
        tokens = batch_of(self.args, self.life.step + 1)
        self.work.do()
        logits = self.parallel(tokens[:, :-1])
        # DDP takes the mean over ranks; scaled so, uneven shares still sum to the mean over the global batch.
        share = 1 / (self.args.global_batch * self.args.sequence)
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") * share
        (loss * WORLD).backward()
        self._update()
        total = loss.detach()
        distributed.all_reduce(total)
        self.life.step += 1
        return float(total)

    def _update(self) -> None:
        """Take a step of gradient descent with momentum; torch.optim would add two seconds of imports to every restart."""
        parameters: list[Tensor] = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            torch._foreach_mul_(self.momentum, 0.9)
            torch._foreach_add_(self.momentum, gradients)
            torch._foreach_add_(parameters, self.momentum, alpha=-self.args.lr)
            torch._foreach_zero_(gradients)

    def save(self) -> None:
        """Save a checkpoint (rank 0)."""
        if self.checkpoints:
            with self.life.saving:
                self.checkpoints.save(self.life.step, {"model": self.model.state_dict(), "momentum": self.momentum})
            self.life.truth.note("saved", self.life.step)
            say(f"saved step {self.life.step}")

    def run(self) -> None:
        """Step until the last one."""
        while self.life.step < self.args.steps:
            loss = self.step()
            self.life.truth.note("step", self.life.step)
            if RANK == 0:
                say(f"step {self.life.step} loss {loss:.4f} batch {self.args.global_batch}")
            if self.life.step % self.args.every == 0:
                self.save()


def open_gpu(share: float) -> None:
    """Open this rank's simulated GPU, where the node has any: as a real trainer's, it is opened when torch is there."""
    if GPU_CLIENTS.is_dir():
        entry = f"{os.environ.get('LOCAL_RANK', '0')} compute {share:g}"
        (GPU_CLIENTS / str(os.getpid())).write_text(entry, encoding="ascii")


def train(args: argparse.Namespace, life: Life) -> None:
    """Join the process group, resume and train."""
    torch.set_num_threads(1)
    open_gpu(args.gpu_share)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    life.truth.note("group up", 0, world=WORLD)
    if RANK == 0:
        say(f"group up rank 0 world {WORLD}")
    Trainer(args, life).run()
    if RANK == 0:
        say(f"done step {life.step}")
    life.truth.note("done", life.step)


def main() -> None:
    """Run the training of one rank."""
    args = parse_args()
    truth = Truth(args.truth)
    life = Life(truth)
    life.watch_sigterm()
    truth.note("start", 0, BORN, pid=os.getpid(), restart=RESTART)
    try:
        train(args, life)
    except Exception as error:  # noqa: BLE001 - the process's last word; torchrun decides what happens next
        truth.note("failed", life.step)
        say(f"failed rank {RANK} after step {life.step}: {type(error).__name__}: {error}".replace("\n", " ")[:500])
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Never by the interpreter's own shutdown: a broken gloo holds that for seconds, and a whole one, on a busy machine,
    # at times aborts in it ("terminate called without an active exception"), which torchrun takes for a failed rank.
    os._exit(0)


if __name__ == "__main__":
    main()
