"""Sources: the Python files of a program: the file that is run, and the files that it imports from its folder."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from clusterdp.check.program.command_words import module_file
from clusterdp.check.program.source import CodePlace, Definition, Source, last_name
from clusterdp.plainfile import read_plain

MOST_FILES, MOST_BYTES = 80, 800_000  # parsing so many files takes about half a second
OURS = "clusterdp"  # clusterdp's own files never count as the program's
# Libraries whose behaviour is known. Another library may handle signals, form the process group, or load a state.
KNOWN = sys.stdlib_module_names | frozenset(
    "absl accelerate albumentations apex ase attr av bitsandbytes boto3 botorch bs4 captum causal_conv1d clearml "
    "click clip clusterdp colossalai comet_ml composer cupy cv2 dask datasets dateutil decord deepspeed "
    "detectron2 dgl diffusers dill dotenv e3nn easydict einops einx evaluate fairscale faiss fastai filelock fire "
    "flash_attn flax fsspec ftfy future fvcore gcsfs gdown gensim google gpytorch gradio gym gymnasium h5py "
    "horovod huggingface_hub hydra ignite imageio iopath IPython jax jaxtyping joblib keras kornia librosa "
    "lightning lightning_fabric lion_pytorch lmdb lpips lxml lz4 mamba_ssm matplotlib megatron ml_collections "
    "mlflow mmcv mmdet mmengine monai mpi4py msamp msgpack mxnet neptune networkx nltk numba numpy nvidia "
    "omegaconf onnx onnxruntime opacus open3d open_clip opt_einsum optuna orjson packaging paddle pandas peft PIL "
    "plotly prettytable psutil pyarrow pycocotools pydantic pynvml pyro pytorch_lightning pytz ray rdkit regex "
    "requests rich rouge_score s3fs sacrebleu sacremoses safetensors schedulefree scipy seaborn sentencepiece "
    "shapely simple_parsing six skimage sklearn skorch smart_open soundfile spacy submitit swanlab sympy tables "
    "tabulate tensorboard tensorboardX tensordict tensorflow termcolor thop tiktoken timm tokenizers torch "
    "torch_geometric torch_xla torchao torchaudio torchdata torchinfo torchmetrics torchrl torchsde torchtext "
    "torchtune torchvision tqdm transformer_engine transformers trimesh triton trl typer typing_extensions tyro "
    "ujson ultralytics unidecode vector_quantize_pytorch visdom wandb webdataset xarray xformers yacs yaml zarr "
    "zstandard".split()
)
# Errors of the parser, which also fails at an expression with thousands of terms, signs or brackets.
NOT_READ = (OSError, SyntaxError, ValueError, LookupError, RecursionError, MemoryError)
MOST_STEPS = 20_000  # limit of the steps from names to values, which take about a third of a second


class TooMuch(Exception):
    """Raised if a program has too many calls to follow."""


@dataclass
class Sources:
    each: list[Source] = field(default_factory=list)
    complete: bool = True
    libraries: set[str] = field(default_factory=set)
    needed: set[Path] = field(default_factory=set)  # the first file, and files that it always imports
    unparsed: list[CodePlace] = field(default_factory=list)
    _steps: int = 0

    def functions(self, name: str, near: Source) -> list[tuple[Source, Definition]]:
        """Returns the functions with this bare name in the file `near`. If `near` has no such function, all files are
        searched."""
        own = [(near, function) for function in near.functions.get(name, [])]
        return own or [(source, function) for source in self.each for function in source.functions.get(name, [])]

    def spend(self) -> None:
        """Counts a step from a name to its value. Raises TooMuch after MOST_STEPS steps."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooMuch

    def called(self, call: ast.Call, source: Source) -> list[tuple[Source, Definition]]:
        """Returns the functions of the program that a call may run. The call may use a plain name, a module's
        attribute, or a method of `self`."""
        target = call.func
        root = target.value if isinstance(target, ast.Attribute) else target
        is_plain = root is target or last_name(root) in {"self", "cls", *source.aliases}
        if not isinstance(root, ast.Name) or not is_plain or self._is_of_library(call, source):
            return []
        return self.functions(source.name(target).rpartition(".")[2], source)

    def callers(self, name: str) -> list[tuple[Source, ast.Call]]:
        """Returns the calls that may run a function with this bare name, or make an object of this class."""
        return self._calls.get(name, [])

    @cached_property
    def _calls(self) -> dict[str, list[tuple[Source, ast.Call]]]:
        """All calls of functions that no library defines. The keys are the name in the call, and the name that the
        function had before an import renamed it."""
        found: dict[str, list[tuple[Source, ast.Call]]] = {}
        for source in self.each:
            for call in (each for each in source.calls if not self._is_of_library(each, source)):
                for name in {last_name(call.func), source.name(call.func).rpartition(".")[2]}:
                    found.setdefault(name, []).append((source, call))
        return found

    def _is_of_library(self, call: ast.Call, source: Source) -> bool:
        return source.name(call.func).split(".")[0] in self.libraries


def sources_from(first: Path, folder: Path) -> Sources:
    """Reads the file `first` and the program's files that it imports. `folder` is the folder in which the program is
    started."""
    found, todo, seen, size = Sources(), [first], {first.resolve()}, 0
    found.needed.add(first)
    roots = [first.parent, folder, folder / "src"]
    while todo:
        path = todo.pop(0)
        try:
            text = importlib.util.decode_source(read_plain(path))  # decodes the file as the interpreter does
            size += len(text)
            if len(found.each) == MOST_FILES or size > MOST_BYTES:
                found.complete = False
                break
            source = Source.read(path, text)
        except NOT_READ as error:
            found.complete = False
            if isinstance(error, SyntaxError):
                found.unparsed.append(CodePlace(path, error.lineno or 1, error.msg))
            continue
        found.each.append(source)
        found.complete &= not any(source.name(call.func).endswith("import_module") for call in source.calls)
        for module, is_needed in _imported(source, roots):
            file = module_file(module, roots) if module.split(".")[0] != OURS else None
            if file is None:
                if not any(os.path.isdir(root.joinpath(*module.split("."))) for root in roots):
                    found.libraries.add(module.split(".")[0])
                continue
            if is_needed and path in found.needed:
                found.needed.add(file)
            if file.resolve() not in seen:
                seen.add(file.resolve())
                todo.append(file)
    found.complete &= found.libraries <= KNOWN
    return found


def _imported(source: Source, roots: list[Path]) -> Iterator[tuple[str, bool]]:
    """Yields the full names of the modules that a file imports, and whether the import always runs. The name b in `from
    a import b` may be a module, too."""
    for node in source.imported:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                package = _package_of(source.file, roots)
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            names = [base] if base else []
            names += [full for alias in node.names if module_file(full := f"{base}.{alias.name}".strip("."), roots)]
        is_needed = isinstance(source.parents.get(node), ast.Module)
        for name in names:
            parts = name.split(".")
            yield name, is_needed
            yield from ((".".join(parts[:i]), is_needed) for i in range(1, len(parts)))


def _package_of(file: Path, roots: list[Path]) -> list[str]:
    """Returns the package of a file, relative to the last of the roots that contain the file: `pkg` for pkg/train.py,
    although `python pkg/train.py` runs the file without a package."""
    for root in reversed(roots):
        if file.is_relative_to(root):
            return list(file.relative_to(root).parent.parts)
    return []
