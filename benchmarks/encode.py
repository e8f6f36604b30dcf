"""How fast a pretrained encoder makes rows of photographs, every one of them twice, with their mirror images.

    python benchmarks/encode.py --device cuda --out benchmarks/results/encode-h200.json

Nothing is kept: the time is that of computing. Images are drawn at random, so all of them are different.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from mithridate.features import Pretrained, encoder


def measured(name: str, device: str, count: int, side: int) -> dict[str, Any]:
    made = encoder(name, device=device)
    assert isinstance(made, Pretrained)
    images = np.random.default_rng(side).integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    made.embeddings(images[: max(2, count // 20)])  # loads weights and compiles kernels
    start = time.perf_counter()
    made.embeddings(images)
    seconds = time.perf_counter() - start
    about = {"encoder": name, "size": getattr(made, "size", None), "side": side, "images": count}
    return {**about, "seconds": round(seconds, 2), "images_per_s": round(count / seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--encoders", default="efficientnet-lite2,efficientnet-lite0")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ["MITHRIDATE_CACHE"] = "off"
    found = [
        measured(name, arguments.device, count, side)
        for name in arguments.encoders.split(",")
        for count, side in ((arguments.images, 32), (max(2, arguments.images // 4), 260))
    ]
    made = encoder(arguments.encoders.split(",")[0], device=arguments.device).to_dict()["made_with"]
    result = {"made_with": made, "rows": found}
    print(json.dumps(result, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
