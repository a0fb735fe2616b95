"""The tables of globals against torch itself, and torch's word on real pickles against ours."""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import fractions
import functools
import io
import json
import pathlib
import pickle
import random
import subprocess
import sys
import types
import zipfile
from itertools import product
from typing import Any

import numpy
import pytest
import torch

from ddpdoctor.checkpoints.pickle_globals import known_globals, meaning, meanings, own_globals
from ddpdoctor.checkpoints.pickles.machine import Program, scan
from ddpdoctor.checkpoints.weights_only import NEVER_ALLOWED, weights_only_blockers

NEEDS_IMPORT = known_globals().needs_import

ASK_TORCH = """
import importlib, io, json, pathlib, pickle, sys, torch
import torch._weights_only_unpickler as w
import torch._utils as u
allowed = sorted({*w._get_allowed_globals(), *w._get_user_allowed_globals()})
refused = {}
for name in sys.argv[1:]:
    try:
        w.load(io.BytesIO(("c" + "\\n".join(name.rsplit(".", 1)) + "\\n.").encode()))
    except pickle.UnpicklingError as error:
        refused[name] = str(error)
root = pathlib.Path(torch.__file__).parent
for path in root.rglob("*.py"):
    # Whatever of torch adds to the list when it is imported.
    if path.name not in ("serialization.py", "_weights_only_unpickler.py") and b"add_safe_globals(" in path.read_bytes():
        importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"))
later = sorted({*w._get_user_allowed_globals()} - set(allowed))
print(json.dumps({"allowed": allowed, "later": later, "refused": refused, "blocked": w._blocklisted_modules,
    "modules": u.IMPORT_MAPPING, "names": [[*k, *v] for k, v in u.NAME_MAPPING.items()]}))
"""


@pytest.fixture(scope="module")
def torchs_word() -> dict[str, Any]:
    """What a fresh torch allows: other tests may have imported more of it into this process."""
    answer = subprocess.run(
        [sys.executable, "-c", ASK_TORCH, *NEEDS_IMPORT], capture_output=True, text=True, check=True, timeout=100
    )
    return json.loads(answer.stdout)


def test_allowed_is_what_torch_allows(torchs_word: dict[str, Any]) -> None:
    assert sorted(known_globals().allowed_by_weights_only) == torchs_word["allowed"]


def test_what_needs_an_import_is_allowed_after_it(torchs_word: dict[str, Any]) -> None:
    assert sorted(NEEDS_IMPORT) == torchs_word["later"]
    assert set(NEEDS_IMPORT) == set(torchs_word["refused"])


@pytest.mark.parametrize("module", sorted(set(NEEDS_IMPORT.values())))
def test_the_import_named_is_the_one_that_allows_it(module: str) -> None:
    names = {name for name, needed in NEEDS_IMPORT.items() if needed == module}
    ask = f"import {module}, torch._weights_only_unpickler as w; print(*w._get_user_allowed_globals())"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=100)
    assert names <= set(answer.stdout.split())


def test_the_other_tables_are_torchs(torchs_word: dict[str, Any]) -> None:
    assert set(torchs_word["blocked"]) == NEVER_ALLOWED
    assert torchs_word["modules"] == known_globals().renamed_modules
    assert {f"{a}.{b}": f"{c}.{d}" for a, b, c, d in torchs_word["names"]} == known_globals().renamed


class Colour(enum.Enum):
    RED = 1


class Plain:
    def __init__(self) -> None:
        self.value = 3


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


class Tagged(torch.Tensor):
    pass


def optimizer_state() -> dict[str, Any]:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    net.layer(torch.ones(2)).sum().backward()
    optimizer.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.5}


def with_attribute() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.tag = "tied"  # type: ignore[attr-defined]
    return parameter


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1], [0, 1]]), torch.ones(2), (2, 2)).coalesce()


OBJECTS = {
    "state dict": lambda: Net().state_dict(),
    "optimizer": optimizer_state,
    "scheduler": lambda: torch.optim.lr_scheduler.LambdaLR(
        torch.optim.SGD(Net().parameters()), lambda _: 1
    ).state_dict(),
    "namespace": lambda: argparse.Namespace(lr=1),
    "numpy number": lambda: {"loss": numpy.float64(3)},
    "numpy array": lambda: numpy.ones(3),
    "whole module": Net,
    "torch's layer": lambda: torch.nn.Linear(1, 1),
    "defaultdict": lambda: collections.defaultdict(list, a=[1]),
    "counter": lambda: collections.Counter("aab"),
    "deque": lambda: collections.deque([1]),
    "enum": lambda: Colour.RED,
    "path": lambda: pathlib.PurePosixPath("/a/b"),
    "datetime": lambda: datetime.datetime(2026, 1, 1),
    "timedelta": lambda: datetime.timedelta(1),
    "partial": lambda: functools.partial(int, base=2),
    "simple namespace": lambda: types.SimpleNamespace(a=1),
    "user class": Plain,
    "class itself": lambda: Plain,
    "function": lambda: optimizer_state,
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset({1}),
    "bytes": lambda: b"\xff\0",
    "no bytes": lambda: b"",
    "bytearray": lambda: bytearray(b"x"),
    "complex": lambda: 1j,
    "range": lambda: range(3),
    "slice": lambda: slice(1),
    "ellipsis": lambda: ...,
    "long": lambda: 2**80,
    "very long": lambda: 1 << 3000,
    "numbers": lambda: [1, -1, 255, 256, 65536, 1.5, True, None, "é", (), (1,), (1, 2, 3, 4)],
    "fraction": lambda: fractions.Fraction(1, 3),
    "random state": random.getstate,
    "torch's random state": torch.get_rng_state,
    "generator": lambda: torch.Generator(),
    "dtype": lambda: torch.float16,
    "device": lambda: torch.device("cuda", 3),
    "size": lambda: torch.Size([1, 2]),
    "layout": lambda: torch.sparse_coo,
    "qscheme": lambda: torch.per_tensor_affine,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "parameter with attribute": with_attribute,
    "buffer": lambda: torch.nn.Buffer(torch.ones(2)),
    "empty tensor": lambda: torch.empty(0),
    "meta tensor": lambda: torch.ones(2, device="meta"),
    "fp8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "uint16": lambda: torch.ones(2).to(torch.uint16),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "bool": lambda: torch.ones(2, dtype=torch.bool),
    "complex tensor": lambda: torch.ones(2, dtype=torch.complex64),
    "sparse": sparse,
    "sparse csr": lambda: sparse().to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "tensor subclass": lambda: torch.ones(2).as_subclass(Tagged),
    "typed storage": lambda: torch.ones(2).storage(),
    "untyped storage": lambda: torch.ones(2).untyped_storage(),
    "ordered dict": lambda: collections.OrderedDict(a=1),
    "chain map": lambda: collections.ChainMap({}),
    "user dict": lambda: collections.UserDict(a=1),
    "float32 tensor in a tuple in a list": lambda: [({"a": torch.ones(1)},)],
    "named tuple": lambda: torch.ones(2, 2).max(dim=0),
}


def saved(value: Any, protocol: int, zipped: bool) -> tuple[bytes, list[Program]]:
    """A checkpoint, and its pickles as we read them."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    data = buffer.getvalue()
    if zipped:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            return data, [scan(archive.read(name))]
    programs = []
    start = 0
    for _ in range(5):
        programs.append(scan(data, start))
        start = programs[-1].end
    return data, programs


def refusal(data: bytes) -> str:
    """What torch says to it, "" if it loads."""
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        return str(error) or "refused"
    return ""


NOT_LEGACY = {"fp8", "nested", "uint16", "untyped storage"}
"""What torch saves in the old format, but can't load from it itself."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBJECTS)
def test_blockers_are_torchs(name: str) -> None:
    """Written by each protocol, as a zip and, where that can be, as older releases wrote it."""
    for protocol, zipped in product((2, 3, 4, 5), (True,) if name in NOT_LEGACY else (True, False)):
        how = f"protocol {protocol}, {'zip' if zipped else 'legacy'}"
        data, programs = saved(OBJECTS[name](), protocol, zipped)
        imported = {one for one, module in NEEDS_IMPORT.items() if module in sys.modules}
        blockers = {reason for program in programs for reason in weights_only_blockers(program)} - imported
        said = refusal(data)
        assert bool(blockers) == bool(said), (how, blockers, said)
        if said and not any(blocker.startswith("the opcode") for blocker in blockers):
            assert any(blocker.removeprefix("builtins.") in said for blocker in blockers), (how, blockers, said)


@pytest.mark.parametrize("name", ["os.system", "posix.system", "nt.system", "sys.exit"])
def test_never_allowed_is_a_blocker(name: str) -> None:
    module, function = name.split(".")
    program = scan(f"\x80\x02c{module}\n{function}\nX\1\0\0\0x\x85R.".encode("latin-1"))
    assert weights_only_blockers(program) == (name,)
    assert meaning(name)[1]


def test_python_2_names_are_translated() -> None:
    """As torch reads them: builtins.set is allowed, whatever Python 2 called it."""
    for line, allowed in (
        (b"c__builtin__\nset\n", True),
        (b"c__builtin__\nunicode\n", False),
        (b"ccopy_reg\n_reconstructor\n", False),
    ):
        data = b"\x80\x02" + line + b"."
        program = scan(data)
        assert (weights_only_blockers(program) == ()) is allowed
        try:
            torch._weights_only_unpickler.load(io.BytesIO(data))
        except pickle.UnpicklingError:
            assert not allowed
        else:
            assert allowed


def test_own_holds_no_danger() -> None:
    """Nothing that we call dangerous is in torch's own list, nor is there anything in it that a program would need to harm."""
    for name in own_globals():
        module = name.rpartition(".")[0]
        assert not meanings().get(name, ("", False))[1]
        assert module in ("builtins", "__builtin__", "_codecs", "collections") or module.startswith("torch"), name
        assert not any(word in name for word in ("load", "open", "exec", "eval", "import", "hub", "compile")), name


DANGEROUS = """
os.system posix.system nt.system os.popen os.execv os.remove subprocess.Popen subprocess.run subprocess.check_output
builtins.eval builtins.exec builtins.compile builtins.__import__ builtins.open builtins.getattr __builtin__.eval __builtin__.execfile
sys.modules importlib.import_module runpy.run_path runpy._run_code code.InteractiveInterpreter pty.spawn socket.socket
shutil.rmtree ctypes.CDLL operator.attrgetter operator.methodcaller _operator.attrgetter operator.call types.CodeType types.FunctionType
pickle.loads _pickle.loads cPickle.loads dill.loads joblib.load torch.hub.load torch.load torch.jit.load torch.utils.model_zoo.load_url
torch.storage._load_from_bytes torch.ops.load_library webbrowser.open urllib.request.urlopen urllib.request.urlretrieve requests.get requests.api.get
http.client.HTTPSConnection asyncio.subprocess.create_subprocess_shell asyncio.create_subprocess_exec multiprocessing.Process
pdb.Pdb pdb.run bdb.Bdb doctest.debug_script timeit.timeit timeit.Timer cProfile.run cProfile.runctx profile.run trace.Trace
numpy.testing._private.utils.runstring numpy.load numpy.f2py.crackfortran.myeval pip.main pip._internal.main ensurepip.bootstrap
venv.create marshal.loads torch.serialization.os.system numpy.testing.os.system torch.utils.cpp_extension.load_inline
torch._dynamo.guards.GuardBuilder.get torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression
torch.utils.collect_env.run torch.utils.bottleneck.__main__.run_cprofile torch.utils._config_module.load_config
torch.jit.unsupported_tensor_ops.execWrapper torch._inductor.codecache.compile_file torch.utils.data.datapipes.utils.decoder.basichandlers
itertools.imap itertools.ifilter __builtin__.reduce thread.start_new_thread commands.getoutput urllib2.urlopen _socket.fromfd
multiprocessing.forking.Popen SocketServer.TCPServer SimpleHTTPServer.test collections.eval numpy.lib.eval torch.compile uuid._popen test.support.script_helper.assert_python_ok compileall.compile_file
site.main numpy.fromfile _operator.methodcaller builtins.breakpoint builtins.globals builtins.setattr torch.hub.load_state_dict_from_url
code.interact zipimport.zipimporter io.open _io.open _io.FileIO pydoc.locate pkgutil.resolve_name logging.config.listen
lib2to3.pgen2.grammar.Grammar.loads lib2to3.pgen2.pgen.ParserGenerator.make_label idlelib.pyshell.ModifiedInterpreter.runcode
idlelib.run.Executive.runcode ssl.get_server_certificate imaplib.IMAP4_stream smtplib.SMTP ftplib.FTP aiohttp.client httplib.HTTPConnection
torch.distributed.run.main torch.distributed.launcher.api.elastic_launch torch.distributed.elastic.multiprocessing.api.PContext
torch.distributed.elastic.agent.server.api.run _frozen_importlib._call_with_frames_removed unittest.mock._importer
pkg_resources.run_script numba.core.serialize._unpickle mailcap.findmatch tkinter.Tcl _testcapi.run_in_subinterp
keras.models.load_model mlflow.pyfunc.load_model cupy.RawKernel nltk.data.load numpy.distutils.exec_command.exec_command
numpy.distutils.core.setup sh.bash sh.Command ruamel.yaml.load code.InteractiveInterpreter.runcode trace.threading.settrace
linecache.getlines _osx_support._read_output distutils.file_util.write_file yaml.load nturl2path.url2pathname.__globals__
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", DANGEROUS)
def test_dangerous_is_said(name: str) -> None:
    text, dangerous = meaning(name)
    assert dangerous, text


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("argparse.Namespace", "options"),
        ("numpy.core.multiarray.scalar", "NumPy"),
        ("numpy._core.multiarray._reconstruct", "NumPy"),
        ("omegaconf.dictconfig.DictConfig", "OmegaConf"),
        ("pathlib.PosixPath", "path"),
        ("pathlib._local.PosixPath", "path"),
        ("pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint", "Lightning"),
        ("lightning.fabric.wrappers._FabricModule", "Lightning"),
        ("fairseq.data.dictionary.Dictionary", "fairseq"),
        ("transformers.training_args.TrainingArguments", "Transformers"),
        ("accelerate.state.PartialState", "Accelerate"),
        ("mmengine.logging.history_buffer.HistoryBuffer", "MMEngine"),
        ("detectron2.config.config.CfgNode", "Detectron2"),
        ("ultralytics.nn.tasks.DetectionModel", "YOLO"),
        ("models.yolo.Model", "YOLO"),
        ("__main__.Net", "script"),
        ("torch.nn.modules.linear.Linear", "layers"),
        ("torch.optim.lr_scheduler.StepLR", "schedulers"),
        ("collections.defaultdict", "default"),
        ("my_project.models.Net", "my_project"),
        ("my_project.system.eval.Net", "my_project"),
        ("code.model.Net", "package code"),
        ("trace.models.Net", "package trace"),
        ("select.models.Net", "package select"),
        ("sh.Net", "package sh"),
        ("site.x", "site"),
        ("functools.partial", "function"),
        ("ruamel.yaml.comments.CommentedMap", "configuration"),
        ("joblib.numpy_pickle.NumpyArrayWrapper", "array"),
        ("inspect.Parameter", "parameter"),
        ("_operator.itemgetter", "standard library"),
        ("torch.distributed.distributed_c10d.ReduceOp", "process groups"),
        ("urllib.parse.ParseResult", "addresses"),
        ("shutil.which", "path"),
        ("io.BytesIO", "standard library"),
        ("codecs.encode", "standard library"),
        ("string.Template", "standard library"),
        ("statistics.NormalDist", "standard library"),
        ("weakref.ref", "standard library"),
        ("unittest.TestCase", "standard library"),
        ("__torch__.Net", "TorchScript"),
    ],
)
def test_meanings(name: str, word: str) -> None:
    text, dangerous = meaning(name)
    assert word in text
    assert not dangerous


def test_every_meaning_is_one_line_of_plain_words() -> None:
    for name, (text, _) in meanings().items():
        assert text, name
        assert "\n" not in text
        assert len(text) <= 120
        assert not text.endswith(".")
        for word in ("safe", "harmless", "secure", "trust"):
            assert word not in text
