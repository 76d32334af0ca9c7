"""What README, docs and recipes say is true: commands, options and settings exist, links lead somewhere, examples run.

Blocks that are marked run here, in the order of the README and docs/python.md, in one folder, with tiny models in
place of NVIDIA's:

    <!-- runs -->                   the block after it
    <!-- runs, with OPTIONS -->     the same; OPTIONS make each of its commands smaller
    <!-- file: NAME -->             the block after it is a file of that name

A command whose comment begins with "refused" has to fail.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from nemo_models import random_sortformer, sortformer_config, sortformer_tensors, write_nemo

from sortk import cli
from sortk.formats import audio, kaldi, rttm, seglst, stm
from sortk.formats.model_folder import save_model
from sortk.formats.tokens import save_tokenizer, train_tokenizer
from sortk.models.canary import CanaryOptions
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.models.sortformer import SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.recipe import load_recipe, shipped_recipes
from sortk.records import Segment

CHECKOUT = Path(__file__).parents[1]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
PAGES += sorted((CHECKOUT / "recipes").glob("*/README.md"))
README = PAGES[0]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<content>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (?P<kind>runs|file)(?:, with |: )?(?P<detail>.*?) -->\s*$")
COMPONENTS = re.compile(r"\|\||&&|[|;]|\$\(")
OTHER_PROGRAMS = {
    "--constraint",
    "--from",
    "--kills",
    "--local-dir",
    "--logdir",
    "--nproc-per-node",
    "--spec",
    "--tag",
}  # of sbatch, uvx, hf ...

pytestmark = pytest.mark.skipif(not README.exists(), reason="not a checkout")


# ---------------------------------------------------------------------------------------------------------------------
# Reading Markdown


@dataclass(frozen=True)
class Block:
    """Code between fences, or indented by four blanks."""

    language: str
    content: str
    kind: str = ""  # of its mark: runs, file
    detail: str = ""


@functools.cache
def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def find_blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, each with the mark before it."""
    found = []
    for match in FENCE.finditer(text):
        mark = MARK.search(text[: match.start()])
        content = re.sub(f"^{match['indent']}", "", match["content"], flags=re.MULTILINE)
        found.append(Block(match["language"], content, mark["kind"] if mark else "", mark["detail"] if mark else ""))
    return found


def find_inline(text: str) -> list[str]:
    """Code between backticks, which may go over the end of a line."""
    prose = FENCE.sub("", text)
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


def find_indented(text: str) -> str:
    """Blocks without fences, as the recipes' pages have them."""
    return "\n".join(line.strip() for line in FENCE.sub("", text).splitlines() if line.startswith("    "))


def join_lines(content: str) -> list[str]:
    return [line for line in re.sub(r"\\\n\s*", "", content).splitlines() if line.strip()]


def split_commands(line: str) -> Iterator[list[str]]:
    """The arguments of each `sortk ...` in a line of shell."""
    for part in COMPONENTS.split(line):
        with contextlib.suppress(ValueError):  # a quote that the split has torn apart
            words = shlex.split(part.strip().rstrip(')"'), comments=True)
            if "sortk" in words and (words[0] == "sortk" or words[max(words.index("sortk") - 1, 0)] == "-m"):
                yield words[words.index("sortk") + 1 :]


def commands_of(page: Path) -> list[list[str]]:
    lines = [
        line for block in find_blocks(read(page)) if block.language in ("", "sh") for line in join_lines(block.content)
    ]
    lines += join_lines(find_indented(read(page))) + [code for code in find_inline(read(page)) if "sortk " in code]
    return [command for line in lines for command in split_commands(line)]


def test_commands_are_found_in_all_kinds_of_code() -> None:
    text = "Say `sortk run --recipe\nmini`.\n\n    sortk status --recipe ami     # how it stands\n\n"
    assert [list(split_commands(code)) for code in find_inline(text)] == [[["run", "--recipe", "mini"]]]
    assert [list(split_commands(line)) for line in join_lines(find_indented(text))] == [[["status", "--recipe", "ami"]]]
    assert list(split_commands("arecord -t raw | sortk diarize - --model M  # live")) == [
        ["diarize", "-", "--model", "M"]
    ]
    assert list(split_commands('eval "$(sortk completion bash)"')) == [["completion", "bash"]]
    assert list(split_commands("torchrun --nproc-per-node 8 -m sortk train-diar ...")) == [["train-diar", "..."]]
    assert list(split_commands("git clone <this repository> && cd sortk")) == []
    assert join_lines("sortk a \\\n   --b\n\nsortk c\n") == ["sortk a --b", "sortk c"]
    [block] = find_blocks("<!-- runs, with --set a=1 -->\n```\nsortk a\n```\n")
    assert (block.kind, block.detail, block.content) == ("runs", "--set a=1", "sortk a\n")


# ---------------------------------------------------------------------------------------------------------------------
# Commands, options, settings, links


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words begin with, and the words after it."""
    command: click.Command = cli.main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command sortk ... {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    parameters = command.get_params(click.Context(command))
    named = {flag: parameter for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}
    return named | {"--help": click.Option(["--help"])}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_command_and_option_exists(page: Path) -> None:
    for words in commands_of(page):
        command, rest = find_command(words)
        options = options_of(command)
        for place, word in enumerate(rest):
            if not word.startswith("-") or word in ("-", "->"):
                continue
            flag, _, value = word.partition("=")
            assert flag in options, f"sortk {' '.join(words)}: no option {flag}"
            kind = options[flag].type
            if isinstance(kind, click.Choice):
                value = value or rest[place + 1]
                assert set(value.strip(",").split("|")) <= set(kind.choices), f"sortk {' '.join(words)}: {value}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_options_that_stand_alone_are_options_of_some_command(page: Path) -> None:
    known = set(OTHER_PROGRAMS)
    for command in every_command(cli.main):
        known |= options_of(command).keys()
    for code in find_inline(read(page)):
        for word in re.findall(r"(?<![\w-])--[a-z][\w-]*", code):
            if not code.startswith(("pip ", "sbatch ")):
                assert word in known, f"{code}: no command has {word}"


def every_command(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield from every_command(command) if isinstance(command, click.Group) else (command,)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_variants_and_settings_of_recipes_exist(page: Path) -> None:
    for words in commands_of(page):
        given = {name: [value for flag, value in itertools.pairwise(words) if flag == name] for name in words}
        for recipe in set(given.get("--recipe", [])) & set(shipped_recipes()):
            load_recipe(recipe, given.get("--set", []), "+".join(given.get("--variant", [])) or None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_settings_in_toml_are_those_of_recipes(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in find_blocks(read(page)) if block.language == "toml"):
        path = tmp_path / f"{number}.toml"
        path.write_text(block.content, encoding="utf-8")
        load_recipe(str(path))


def test_every_command_is_in_the_readme() -> None:
    def names(group: click.Group, prefix: str) -> Iterator[str]:
        for name, command in group.commands.items():
            yield from names(command, f"{prefix} {name}") if isinstance(command, click.Group) else (f"{prefix} {name}",)

    told = " ".join(read(README).split())
    assert [name for name in names(cli.main, "sortk") if name not in told] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_target_of_make_exists(page: Path) -> None:
    targets = re.findall(r"^([\w%-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    patterns = [re.compile(target.replace("%", "(" + "|".join(shipped_recipes()) + ")")) for target in targets]
    code = [block.content for block in find_blocks(read(page))] + find_inline(read(page)) + [find_indented(read(page))]
    for target in re.findall(r"(?:^|&& )make ([\w-]+)", "\n".join(code), re.MULTILINE):
        assert any(pattern.fullmatch(target) for pattern in patterns), f"there is no make {target}"


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them out of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", read(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_code_and_tests_that_the_page_about_the_paper_names_exist() -> None:
    root = README.parent
    page = read(root / "docs" / "paper.md")
    for name in re.findall(r"`([a-z_0-9/]+\.py)`", page):
        assert (root / "sortk" / name).is_file() or (root / name).is_file(), name
    known = "\n".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", page):
        assert f"def {name}(" in known, name


@pytest.mark.parametrize(
    "page", [*PAGES, CHECKOUT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(CHECKOUT))
)
def test_every_link_inside_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", read(page))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


# ---------------------------------------------------------------------------------------------------------------------
# What runs

ENCODER = FastConformerOptions(d_model=32, n_layers=1, n_heads=2, subsampling_channels=8)
DIARIZER = SortformerOptions(
    features=FeatureOptions(n_mels=16),
    encoder=ENCODER,
    transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=32),
)
RECORDINGS = [f"call{number:02}" for number in range(4)]
SECONDS = 6.0


def talk(session: str) -> list[Segment]:
    """Two people, the second during and after the first."""
    spans = (("alice", 0.5, 3.0, "shall we start"), ("bob", 2.5, 5.5, "yes let us"))
    return [Segment(session, speaker, start, end, text) for speaker, start, end, text in spans]


def write_recording(path: Path) -> None:
    """Two hums where the two people talk."""
    time = np.arange(int(SECONDS * 16000)) / 16000
    hums = [np.sin(2 * np.pi * pitch * time) for pitch in (150, 260)]
    active = [(time >= each.start) & (time < each.end) for each in talk("")]
    noise = np.random.default_rng(0).standard_normal(len(time)) * 0.01
    samples = sum(0.2 * hum * on for hum, on in zip(hums, active, strict=True)) + noise
    audio.write_flac(path, samples.astype(np.float32))


def write_asr(folder: Path) -> None:
    """A multi-speaker ASR with random weights."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["shall we start yes let us"], 40, n_speakers=4)
    decoder = TransformerOptions(d_model=32, n_layers=1, n_heads=2, d_inner=64, pre_norm=True)
    options = CanaryOptions(
        n_tokens=tokenizer.n_tokens,
        max_tokens=100,
        features=DIARIZER.features,
        encoder=FastConformerOptions(d_model=32, n_layers=1, n_heads=2, subsampling_channels=8, scale_input=False),
        decoder=decoder,
    )
    model = MsAsrOptions(options, "frozen", 4, DIARIZER)
    save_tokenizer(folder, tokenizer)
    config = {"model": "msasr", "options": model.to_json(), "tokenizer": tokenizer.settings.to_json()}
    config["sst_level"] = "word"
    save_model(folder, MsAsr(model).state_dict(), config)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a reader of the README has on disk."""
    folder = tmp_path_factory.mktemp("workplace")
    write_recording(folder / "meeting.flac")
    shutil.copy(folder / "meeting.flac", folder / "meeting.wav")  # libsndfile goes by the content
    (folder / "recordings").mkdir()
    (folder / "my-data").mkdir()
    shutil.copy(folder / "meeting.flac", folder / "recordings")
    for name in RECORDINGS:
        shutil.copy(folder / "meeting.flac", folder / "my-data" / f"{name}.flac")
        rttm.write(folder / "my-data" / f"{name}.rttm", talk(name))
    kaldi.write(
        folder / "kaldi" / "train",
        {name: folder / "my-data" / f"{name}.flac" for name in RECORDINGS},
        [s for name in RECORDINGS for s in talk(name)],
    )
    rttm.write(folder / "ref.rttm", talk("meeting"))
    rttm.write(folder / "hyp.rttm", talk("meeting")[:1])
    stm.write(folder / "ref.stm", talk("meeting"))
    seglst.write(folder / "hyp.json", talk("meeting"))
    model = random_sortformer(DIARIZER)
    write_nemo(folder / "diar_sortformer_4spk-v1.nemo", sortformer_config(DIARIZER), sortformer_tensors(model))
    write_asr(folder / "exp" / "asr" / "model")
    return folder


def run_line(line: str, options: list[str]) -> None:
    """A command of sortk, whose output may go into a file."""
    told, _, comment = line.partition(" #")
    words = shlex.split(told)
    assert words[0] == "sortk", line
    words, target = (words[: words.index(">")], words[words.index(">") + 1]) if ">" in words else (words, None)
    result = CliRunner().invoke(cli.main, words[1:] + options)
    assert result.exit_code == (1 if comment.strip().startswith("refused") else 0), f"{line}\n{result.output}"
    if target:
        Path(target).write_text(result.stdout, encoding="utf-8")


PAGES = [page for page in (README, README.parent / "docs" / "python.md") if page.exists()]
MARKED = [block for page in PAGES for block in find_blocks(read(page)) if block.kind]


@pytest.mark.parametrize("block", MARKED, ids=lambda block: block.content.split("\n")[0][:50])
def test_the_readme_runs(block: Block, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    if block.kind == "file":
        Path(block.detail).write_text(block.content, encoding="utf-8")
    elif block.language == "python":
        exec(compile(block.content, "example", "exec"), {})
    else:
        for line in join_lines(block.content):
            run_line(line, shlex.split(block.detail))


def test_what_the_readme_promises_is_there(workplace: Path) -> None:
    """After all that ran before."""
    if not (workplace / "exp" / "my").exists():
        pytest.skip("the examples did not run")
    for name in (
        "meeting.rttm",
        "out/meeting.npy",
        "out/meeting.svg",
        "words/meeting.html",
        "models/sortformer/config.json",
        "der.json",
    ):
        assert (workplace / name).is_file(), name
    for name in ("08-score/RESULTS.md", "05-train-diar/model/config.json", "07-tune/postprocess.toml"):
        assert (workplace / "exp" / "my" / name).is_file(), name
    results = (workplace / "exp" / "my" / "08-score" / "RESULTS.md").read_text(encoding="utf-8")
    assert "| initial model: small | none |" in results
