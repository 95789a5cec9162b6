# ruff: noqa: INP001 - not a package: one file that is copied to a cluster
"""
The smoke training for a real cluster: a small GPT under plain DDP, on GPUs with NCCL, without them with gloo.

One file without chaoskit: copy it to a file system that every node sees. `smoke.sbatch` beside it starts it under
torchrun; so does anything else that sets RANK, LOCAL_RANK and WORLD_SIZE. It needs PyTorch 2.1 and Python 3.9 or newer.

It does the same work in every step, so that its pace is steady; it saves whole checkpoints or none, resumes from the
newest that can be read, and says on rank 0 what `format: chaoskit` reads:

    chaoskit-trainer start rank 0 restart 1 pid 345     a process was born (every rank)
    group up rank 0 world 128                           the process group exists
    loaded step 100 | no checkpoint                     where it goes on from
    step 101 loss 7.5300 batch 1024                     a step is done on every rank
    saved step 125                                      a checkpoint is durable
    failed rank 2 after step 130: ...                   why a process ends (any rank)

Sizes are options: make a step take 0.2 to 2 s on your GPUs. Steps that are much longer make every moment coarse.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from datetime import timedelta
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def say(text: str) -> None:
    """Write one line with one call: a block-buffered log would tell its steps minutes late, and all at once."""
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    # Before torch is imported, which takes seconds: the birth of a process is told when it happens.
    say(f"chaoskit-trainer start rank {RANK} restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} pid {os.getpid()}")

import torch  # noqa: E402 - see above
from torch import distributed, nn  # noqa: E402 - see above
from torch.nn.parallel import DistributedDataParallel  # noqa: E402 - see above


def options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="chaoskit's smoke training for a real cluster")
    parser.add_argument("--checkpoints", required=True, type=Path, help="directory that every node sees; made when it is not there")
    parser.add_argument("--every", type=int, default=25, help="steps from one checkpoint to the next")
    parser.add_argument("--steps", type=int, default=10_000_000, help="last step; chaoskit ends the training long before")
    parser.add_argument("--batch", type=int, default=32, help="samples a step on each rank")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens a sample")
    parser.add_argument("--width", type=int, default=1024, help="width of the model, a multiple of 64")
    parser.add_argument("--layers", type=int, default=12, help="transformer blocks")
    parser.add_argument("--vocabulary", type=int, default=8192, help="number of tokens")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds until a silent peer counts as dead; PyTorch waits 10 to 30 min"
    )
    return parser.parse_args()


class Gpt(nn.Module):
    """A decoder-only transformer of PyTorch's own layers."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        heads = max(args.width // 64, 1)
        block = nn.TransformerEncoderLayer(args.width, heads, 4 * args.width, dropout=0.0, batch_first=True, norm_first=True)
        self.token = nn.Embedding(args.vocabulary, args.width)
        self.place = nn.Parameter(torch.zeros(args.sequence, args.width))
        self.blocks = nn.TransformerEncoder(block, args.layers, enable_nested_tensor=False)
        self.head = nn.Linear(args.width, args.vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(args.sequence), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (batch, sequence) to the logits of each next token (batch, sequence, vocabulary)."""
        logits: torch.Tensor = self.head(self.blocks(self.token(tokens) + self.place, mask=self.mask, is_causal=True))
        return logits


def samples(args: argparse.Namespace, step: int) -> torch.Tensor:
    """Return this rank's tokens of a step, shape (batch, sequence + 1): the same after every resume. Each counts on by a stride."""
    generator = torch.Generator().manual_seed(step * WORLD + RANK)
    start = torch.randint(args.vocabulary, (args.batch, 1), generator=generator)
    stride = torch.randint(1, 8, (args.batch, 1), generator=generator)
    return (start + stride * torch.arange(args.sequence + 1)) % args.vocabulary


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, newest first."""
    return sorted((int(found[1]) for path in folder.iterdir() if (found := re.fullmatch(r"step-(\d+)\.pt", path.name))), reverse=True)


def save(folder: Path, step: int, state: dict[str, object]) -> None:
    """Write a checkpoint so that it is there whole, also after a power cut, or not at all; keep the last three."""
    temporary = folder / f".step-{step}.tmp"
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / f"step-{step}.pt")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)  # the name too
    finally:
        os.close(handle)
    for old in steps_in(folder)[3:]:
        (folder / f"step-{old}.pt").unlink(missing_ok=True)


class Training:
    """The model under DDP, its optimiser, and the step it has reached."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        torch.manual_seed(1)
        self.model = Gpt(args).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        args.checkpoints.mkdir(parents=True, exist_ok=True)
        self.step = self._resume()
        self.parallel = DistributedDataParallel(self.model, device_ids=[device.index] if device.type == "cuda" else None)
        if RANK == 0:
            say(f"loaded step {self.step}" if self.step else "no checkpoint")

    def _resume(self) -> int:
        """Rank 0 chooses the newest checkpoint that it can read, and every rank loads that one."""
        step = torch.tensor([self._newest() if RANK == 0 else 0], device=self.device)
        distributed.broadcast(step, src=0)
        if int(step) and RANK:
            self._load(int(step))
        return int(step)

    def _newest(self) -> int:
        for step in steps_in(self.args.checkpoints):
            try:
                self._load(step)
            except Exception as error:  # noqa: BLE001 - whatever a torn file does to the reader, an older one may be whole
                say(f"warning: checkpoint of step {step} cannot be read: {type(error).__name__}: {error}".replace("\n", " "))
            else:
                return step
        return 0

    def _load(self, step: int) -> None:
        state = torch.load(self.args.checkpoints / f"step-{step}.pt", map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def one_step(self) -> float:
        """Do one step on every rank; return the mean loss over all ranks, which tells that all of them have done it."""
        tokens = samples(self.args, self.step + 1).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.parallel(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        total = loss.detach()
        distributed.all_reduce(total)
        self.step += 1
        return float(total) / WORLD

    def run(self) -> None:
        """Step until the last one, and save every few."""
        while self.step < self.args.steps:
            loss = self.one_step()
            if RANK == 0:
                say(f"step {self.step} loss {loss:.4f} batch {self.args.batch * WORLD}")
            if RANK == 0 and self.step % self.args.every == 0:
                save(self.args.checkpoints, self.step, {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()})
                say(f"saved step {self.step}")


def main() -> None:
    """Join the process group, resume and train; end at once when a peer is lost, so that torchrun can start anew."""
    args = options()
    gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if gpus else "gloo", timeout=timedelta(seconds=args.timeout))
    if RANK == 0:
        say(f"group up rank 0 world {WORLD}")
    training = None
    try:
        training = Training(args, device)
        training.run()
    except Exception as error:  # noqa: BLE001 - whatever the collective says; and a process that tidies up NCCL after that may hang
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        say(f"failed rank {RANK} after step {training.step if training else 0}: {reason[:400]}")
        os._exit(1)
    # Also without tidying up: who is done must not wait for a peer that is lost meanwhile.
    say(f"done rank {RANK} step {training.step}")
    os._exit(0)


if __name__ == "__main__":
    main()
