"""Writes a trained model as the one that comes with sortk: weights in float16, how windows are linked, and the graph
that onnxruntime runs (windows.onnx; needs the extra `export`).

python recipes/small/ship.py --model exp/small/05-train-diar/model --out small
python recipes/small/voices.py --exp exp/small --corpora /data --model small --out small/voices.safetensors
sortk tune --model small --manifest valid.jsonl --out postprocess.toml
python recipes/small/ship.py --model small --voices small/voices.safetensors --postprocess postprocess.toml \\
    --out sortk/data/diarizer

Of several models, such as the weights before and after more training, the mean of their weights is written.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import asdict
from pathlib import Path

import torch

from sortk.formats.model_folder import GRAPH_NAME, load_model, save_model, write_config
from sortk.formats.postprocess import POSTPROCESS_NAME
from sortk.inference.export import write_windows
from sortk.inference.linking import VOICES_NAME, LinkingOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="one, or several to average")
    parser.add_argument("--postprocess", type=Path)
    parser.add_argument("--voices", type=Path, help="what voices.py has written")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    (weights, config), *others = [load_model(path) for path in options.model]
    linking = asdict(LinkingOptions(speech=0.4))
    config = {"model": config["model"], "options": config["options"], "linking": linking}
    halves = {}
    for name, tensor in weights.items():
        alike = [tensor, *(other[name] for other, _ in others)]
        halves[name] = torch.stack(alike).double().mean(dim=0).half() if tensor.is_floating_point() else tensor
    save_model(options.out, halves, config)
    write_windows(options.out)
    write_config(options.out, config, [options.out / GRAPH_NAME])
    for path, name in ((options.voices, VOICES_NAME), (options.postprocess, POSTPROCESS_NAME)):
        if path:
            shutil.copyfile(path, options.out / name)


if __name__ == "__main__":
    main()
