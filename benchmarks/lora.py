"""An iteration of n clients of a language model, compared to a plain training step on the same sequences.

    python benchmarks/lora.py                          # the shape of Qwen2.5-0.5B, random weights; a GPU if available
    python benchmarks/lora.py --base Qwen/Qwen2.5-0.5B # or a folder, or a .gguf file
    python benchmarks/lora.py --tiny                   # a model of a few thousand weights, to test the script

The plain step uses `peft` alone: one adapter, one batch of all clients' sequences, forward, backward, and a step of
gradient descent. In an iteration, each client has its own adapter and gradient, followed by momentum, a prox and an
exchange (DEPOSITUM, MCP, complete graph). Sequences, and weights without `--base`, are random: neither time nor memory
depends on them. Memory is the maximum that torch allocated on the device (on a CPU, the maximum of the process).
"""

import argparse
import math
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from depositum import models, networks
from depositum.algorithms import Depositum
from depositum.engines import EngineSettings, Simulator
from depositum.engines.compilation import CAPTURE_LENGTH
from depositum.language import IGNORED, LoraModel, TokenSamples
from depositum.language.pretrained import from_pretrained
from depositum.layout import Layout
from depositum.problem import Problem, Trial, as_loss
from depositum.provenance import describe_versions
from depositum.regularizers import MCP

#: The shape of Qwen2.5-0.5B, and a tiny one.
SHAPES: dict[str, dict[str, int]] = {
    "0.5B": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
}


def random_base(folder: Path, shape: str) -> str:
    """A model of this shape with random weights, in bfloat16."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPES[shape], tie_word_embeddings=True, max_position_embeddings=1024))
    finally:
        torch.set_default_dtype(default_dtype)
    model.save_pretrained(folder)
    return str(folder)


def problem_of(base: str, rank: int, clients: int, batch: int, length: int) -> Problem:
    """A problem with `batch` sequences of `length` tokens per client, whose second half is to be predicted."""
    model = models.build({"lora": {"base": base, "rank": rank}}, (length,), 1, 0)
    assert isinstance(model, LoraModel)
    tokens = torch.randint(0, model.base.vocabulary, (clients * batch, length + 1))
    targets = tokens[:, 1:].clone()
    targets[:, : length // 2] = IGNORED
    layout = Layout.of(model)
    start = layout.row({name: p.detach() for name, p in model.named_parameters()})
    parts = list(np.split(np.arange(clients * batch), clients))
    return Problem(
        model=model,
        loss=as_loss("tokens"),
        train=TokenSamples(tokens[:, :-1].clone(), targets),
        trials=(Trial(0, start, parts),),
        regularizer=MCP(lam=1.0, theta=5.0),
        beta=1e-5,
    )


def plain_steps(base: str, rank: int, problem: Problem, device: torch.device, precision: str) -> Callable[[int], None]:
    """A function that runs a number of training steps with peft on all sequences at once."""
    from peft import LoraConfig, get_peft_model

    frozen = torch.bfloat16 if precision == "bf16" else torch.float32
    loaded = from_pretrained("AutoModelForCausalLM", base, "--base", dtype=frozen)
    adapted: Any = get_peft_model(loaded, LoraConfig(r=rank, lora_alpha=16, task_type="CAUSAL_LM")).to(device)
    trainable = [p for p in adapted.parameters() if p.requires_grad]
    ids = problem.train.inputs.to(device)
    labels = ids.clone()
    labels[:, : ids.shape[1] // 2] = IGNORED

    def steps(count: int) -> None:
        for _ in range(count):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                loss = adapted(input_ids=ids, labels=labels, use_cache=False).loss
            for parameter, gradient in zip(trainable, torch.autograd.grad(loss, trainable), strict=True):
                parameter.data.add_(gradient, alpha=-0.01)

    return steps


def seconds(step: Callable[[int], object], steps: int, device: torch.device) -> float:
    """Seconds per step: the best of three repetitions of `steps` steps, after a warm-up."""
    step(steps)
    times = []
    for _ in range(3):
        _wait(device)
        start = time.perf_counter()
        step(steps)
        _wait(device)
        times.append((time.perf_counter() - start) / steps)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def gibibytes(device: torch.device) -> float:
    """Maximum memory since the last `reset_memory`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def reset_memory(device: torch.device) -> None:
    """Restart the measurement of memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def simulator_of(problem: Problem, batch: int, device: str, precision: str, backend: str, compile: str) -> Simulator:
    settings = EngineSettings(device, "float32", precision, backend, compile)  # type: ignore[arg-type]
    network = networks.complete(problem.n)
    simulator = Simulator(problem, network, Depositum(alpha=0.01, gamma=0.5), batch_size=batch, settings=settings)
    simulator.start()
    return simulator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--base", help="a folder, a .gguf file or a name on the Hugging Face Hub (default: random weights)"
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", help="default: bf16 on a GPU, float32 on a CPU")
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 16])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=192)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, default=CAPTURE_LENGTH, help=f"of a go; rounded up to a multiple of {CAPTURE_LENGTH}"
    )
    parser.add_argument("--compile", default="never", choices=["never", "always"])
    parser.add_argument("--backends", nargs="+", default=["vmap", "loop"])
    options = parser.parse_args()
    device = torch.device(options.device)
    # A multiple of the iterations captured in a CUDA graph: others would be captured in every repetition.
    steps = CAPTURE_LENGTH * math.ceil(options.steps / CAPTURE_LENGTH)
    precision = options.precision or ("bf16" if device.type == "cuda" else "float32")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    sizes = f"batch {options.batch}, length {options.length}"
    print(f"{device.type} ({name}), {precision}, {sizes} ({describe_versions()})")
    with tempfile.TemporaryDirectory() as folder:
        base = options.base or random_base(Path(folder) / "base", "tiny" if options.tiny else "0.5B")
        for clients in options.clients:
            torch.manual_seed(0)
            problem = problem_of(base, options.rank, clients, options.batch, options.length)
            print(f"n = {clients}, d = {problem.layout.size:,}")
            reset_memory(device)
            plain = plain_steps(base, options.rank, problem, device, precision)
            plain_seconds = seconds(plain, steps, device)
            print(f"  peft alone     {1e3 * plain_seconds:9.2f} ms            {gibibytes(device):7.2f} GiB")
            del plain
            for backend in options.backends:
                reset_memory(device)
                simulator = simulator_of(problem, options.batch, options.device, precision, backend, options.compile)
                elapsed = seconds(simulator.advance, steps, device)
                memory, base_size = gibibytes(device), _frozen(simulator) / 2**30
                ratio = f"{elapsed / plain_seconds:5.2f} times"
                print(f"  {backend:<14} {1e3 * elapsed:9.2f} ms {ratio} {memory:7.2f} GiB (base {base_size:.2f})")
                del simulator


def _frozen(simulator: Simulator) -> int:
    """Bytes of frozen weights on the device, counting shared memory once."""
    weights = [p for p in simulator.oracle.model.model.parameters() if not p.requires_grad]
    return sum({p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in weights}.values())


if __name__ == "__main__":
    main()
