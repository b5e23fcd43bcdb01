"""What an installed wheel must be able to do, in an empty folder; run by `.ci/wheel-test` in an empty environment."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import torch

import depositum as dp


def main(root: Path) -> None:
    """Import, train in three lines, run an example with the command, and find the files of the package."""
    package = Path(dp.__file__).parent
    assert sys.prefix != sys.base_prefix
    assert package.is_relative_to(sys.prefix), f"imported from {package}, not from the environment"

    clients = [(torch.randn(40, 4) + i, torch.randint(0, 3, (40,))) for i in range(4)]
    result = dp.fit(torch.nn.Linear(4, 3), clients, network="ring", steps=20, progress=False)
    assert result.finished

    printed = subprocess.run(["depositum", "--version"], check=True, capture_output=True, text=True).stdout.split()
    assert printed == ["depositum", dp.__version__], printed
    command = ["depositum", "run", root / "examples" / "demo.toml", "--out", "runs/demo", "--set", "run.steps=20"]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("config.toml", "history.csv", "model.safetensors", "curves.png"):
        assert Path("runs", "demo", name).stat().st_size > 0, name
    listed = subprocess.run(["depositum", "reproduce"], check=True, capture_output=True, text=True).stdout
    assert "stepsize" in listed, listed

    installed = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    source = root / "src" / "depositum"
    expected = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    missing = {path for path in expected - installed if "__pycache__" not in path}
    assert not missing, f"not in the wheel: {sorted(missing)}"
    assert files("depositum").joinpath("py.typed").is_file()
    print(f"python {sys.version.split()[0]}, torch {torch.__version__}, depositum {dp.__version__}: the wheel works")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
