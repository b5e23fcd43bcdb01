"""Draw the picture of the report in the documentation: `python benchmarks/report_image.py [OUT.png]`.

Runs six methods on the digits for a minute, writes their report, and takes a picture of its upper part in a headless
Chromium. The runs and the page are left in `runs/report-image`.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

METHODS = "depositum,prox-dasa,fedmid,feddr,d-psgd,dsgt"
#: An evaluation every five iterations, and the costly measures too, so that all panels have curves.
SETTINGS = ("run.seeds=[0,1,2]", "run.evaluate_every=5", "metrics.costly_every=5")


def main() -> None:
    from tests.support.headless_chromium import Browser, find_chromium

    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "report.png"
    if find_chromium() is None:
        sys.exit("Chromium is needed: install it, and run this again")
    folder = ROOT / "runs" / "report-image"
    config = ROOT / "examples" / "methods.toml"
    arguments = ["compare", config, "--methods", METHODS, "--out", folder, "--report"]
    for setting in SETTINGS:
        arguments += ["--set", setting]
    subprocess.run([sys.executable, "-m", "depositum", *map(str, arguments)], check=True)
    with Browser(1240, 1180) as browser:
        browser.open(folder / "report.html")
        browser.screenshot(out, complete=False)
    print(f"picture: {out}")


if __name__ == "__main__":
    main()
