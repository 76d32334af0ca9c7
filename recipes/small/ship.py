"""Writes a trained model as the one that comes with sortk: weights in float16, with its tuned postprocessing.

sortk tune --model MODEL --manifest valid.jsonl --out postprocess.toml
python recipes/small/ship.py --model MODEL --postprocess postprocess.toml --out sortk/data/diarizer
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import asdict
from pathlib import Path

from sortk.formats.model_folder import load_model, save_model
from sortk.inference.linking import LinkingOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--postprocess", type=Path, required=True)
    parser.add_argument("--threshold", type=float, default=LinkingOptions().threshold, help="of linking  [%(default)s]")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    weights, config = load_model(options.model)
    linking = asdict(LinkingOptions(threshold=options.threshold))
    config = {"model": config["model"], "options": config["options"], "linking": linking}
    halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    save_model(options.out, halves, config)
    shutil.copyfile(options.postprocess, options.out / "postprocess.toml")


if __name__ == "__main__":
    main()
