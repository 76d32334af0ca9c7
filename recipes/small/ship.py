"""Writes a trained model as the one that comes with sortk: weights in float16, and how windows are linked.

python recipes/small/ship.py --model exp/small/05-train-diar/model --out small
sortk tune --model small --manifest valid.jsonl --out postprocess.toml
python recipes/small/ship.py --model small --postprocess postprocess.toml --out sortk/data/diarizer

Of several models, such as the weights before and after more training, the mean of their weights is written.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import asdict
from pathlib import Path

import torch

from sortk.formats.model_folder import load_model, save_model
from sortk.inference.linking import LinkingOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="one, or several to average")
    parser.add_argument("--postprocess", type=Path)
    parser.add_argument("--min-gain", type=float, default=LinkingOptions().min_gain, help="of linking  [%(default)s]")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    (weights, config), *others = [load_model(path) for path in options.model]
    linking = asdict(LinkingOptions(min_gain=options.min_gain, speech=0.4))
    config = {"model": config["model"], "options": config["options"], "linking": linking}
    halves = {}
    for name, tensor in weights.items():
        alike = [tensor, *(other[name] for other, _ in others)]
        halves[name] = torch.stack(alike).double().mean(dim=0).half() if tensor.is_floating_point() else tensor
    save_model(options.out, halves, config)
    if options.postprocess:
        shutil.copyfile(options.postprocess, options.out / "postprocess.toml")


if __name__ == "__main__":
    main()
