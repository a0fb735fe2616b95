"""What classes and functions that pickles name are, in a few words each. By full name, or by a module for all in it.

The second of each pair: known to run commands or code, or to reach files or the network. False does not mean harmless. Pure.
"""

from __future__ import annotations

BURIED = frozenset(
    {"__builtins__", "__globals__", "__subclasses__", "builtins", "importlib", "nt", "os", "posix", "subprocess", "sys"}
)
"""Pickles of protocol 4 may name attributes of attributes: torch.serialization.os.system."""
BURIED_LAST = frozenset({"__getattribute__", "__import__", "eval", "exec", "execfile", "getattr", "popen", "system"})
"""Functions that any module which uses them hands on under its own name."""

_COMMAND = "runs a command on this host"
_SHELL = "runs a command in a shell"
_CODE = "runs Python code that is given as text"
_PROGRAM = "runs a Python program or module"
_IMPORT = "imports any module, which runs its code"
_PICKLE = "loads another pickle, which can run anything"
_FILES = "reads or writes files"
_DELETES = "copies, moves or deletes files and folders"
_NETWORK = "opens network connections"
_NATIVE = "loads native libraries and reaches any memory"
_ATTRIBUTE = "reaches any attribute or method by its name"
_INSTALLS = "installs packages, which runs their code"
_DOWNLOADS = "downloads code and runs it"

_DANGEROUS = {
    _SHELL: "os.system os.popen posix.system posix.popen nt.system nt.popen popen2 commands subprocess.getoutput"
    " subprocess.getstatusoutput asyncio.create_subprocess_shell asyncio.subprocess.create_subprocess_shell"
    " torch.utils.collect_env IPython.utils.process.system",
    _COMMAND: "subprocess _posixsubprocess _winapi pty pexpect asyncio.subprocess asyncio.create_subprocess_exec"
    " distutils.spawn setuptools._distutils.spawn multiprocessing multiprocess concurrent.futures.process sh plumbum mailcap"
    " numpy.distutils torch.distributed.run torch.distributed.launch torch.distributed.launcher torch.distributed.elastic"
    " invoke fabric paramiko os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe os.spawnl"
    " os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe os.posix_spawn os.posix_spawnp"
    " os.startfile posix.execv posix.execve posix.posix_spawn posix.posix_spawnp posix.fork nt.startfile"
    " platform.popen platform._syscmd_ver _osx_support _aix_support ctypes.util"
    " uuid._popen uuid._get_command_stdout uuid._arp_getnode uuid._ifconfig_getnode uuid._ip_getnode"
    " uuid._lanscan_getnode uuid._netstat_getnode uuid.getnode test.support torch.multiprocessing",
    _CODE: "builtins.eval builtins.exec builtins.compile builtins.execfile __builtin__.eval __builtin__.compile"
    " __builtin__.execfile code codeop compileall py_compile torch.compile _pyrepl idlelib timeit doctest pdb bdb profile cProfile trace"
    " numpy.testing._private.utils.runstring numpy.testing.utils.runstring numpy.testing.runstring"
    " numpy.f2py.crackfortran.myeval numpy.f2py.crackfortran.param_eval numpy.f2py.crackfortran.getlincoef"
    " pandas.eval pandas.core.computation numexpr.evaluate sympy.sympify sympy.parsing asteval dill._dill._create_function"
    " logging.config.listen logging.config.dictConfig lib2to3.pgen2.pgen torch.fx.graph_module"
    " torch.fx._symbolic_trace torch._dynamo.guards torch.fx.experimental.symbolic_shapes"
    " torch.utils.bottleneck torch.utils.data.datapipes.utils.decoder torch.jit.unsupported_tensor_ops torch.utils._config_module"
    " torch.jit.frontend torch.jit._script torch.jit.script torch._inductor ast.literal_eval.__globals__"
    " xml.sax.expatreader IPython ipykernel jinja2 mako joblib._utils.eval_expr _testcapi _testinternalcapi"
    " _xxsubinterpreters _interpreters concurrent.interpreters tkinter _tkinter numba.pycc",
    _PROGRAM: "runpy pkgutil.resolve_name zipapp zipimport unittest.main unittest.loader unittest.TestLoader unittest.TestProgram venv.main"
    " pkg_resources",
    _IMPORT: "builtins.__import__ __builtin__.__import__ importlib imp pkgutil pydoc modulefinder _frozen_importlib"
    " _frozen_importlib_external unittest.mock._importer unittest.mock._get_target unittest.mock._patch unittest.mock.patch"
    " hydra.utils"
    " hydra._internal pytorch_lightning.utilities.cloud_io site.main site.addpackage site.addsitedir"
    " site.addsitepackages site.addusersitepackages site.venv site.execsitecustomize site.execusercustomize django.utils.module_loading"
    " werkzeug.utils.import_string zope.dottedname",
    _PICKLE: "pickle cPickle _pickle pickle5 dill cloudpickle.loads cloudpickle.load cloudpickle.cloudpickle.loads"
    " joblib.load joblib.externals joblib.hashing joblib.memory joblib.Memory joblib.numpy_pickle joblib.numpy_pickle_compat"
    " joblib.parallel joblib.Parallel joblib.pool numba.core.serialize keras.models.load_model keras.saving keras.src.saving"
    " keras.src.models.model.model_from_json keras.engine.saving tensorflow.keras.models.load_model"
    " tensorflow.python.keras.saving mlflow cupy.load nltk.data.load marshal shelve torch.load torch.serialization.load torch.jit.load torch.jit._serialization.load torch.package"
    " torch.storage._load_from_bytes torch.serialization._load torch.serialization._legacy_load pandas.read_pickle"
    " pandas.io.pickle numpy.load numpy.lib.npyio numpy.lib._npyio_impl torch.distributed.distributed_c10d"
    " torch.distributed.rpc torch.export.load multiprocessing.reduction jsonpickle yaml ruamel.yaml.load ruamel.yaml.load_all"
    " ruamel.yaml.main ruamel.yaml.constructor ruamel.yaml.YAML klepto",
    _FILES: "builtins.open __builtin__.open __builtin__.file io.open io.FileIO _io.open _io.FileIO _pyio codecs.open"
    " fileinput tempfile glob linecache mmap numpy.fromfile numpy.memmap numpy.core.memmap numpy.save numpy.savetxt"
    " numpy.loadtxt numpy.genfromtxt numpy.DataSource numpy.lib._datasource torch.save torch.serialization.save"
    " torch.from_file pathlib.Path.write_text pathlib.Path.write_bytes pathlib.Path.unlink pathlib.Path.open"
    " logging.FileHandler logging.handlers gzip.open bz2.open lzma.open tarfile zipfile sqlite3 dbm"
    " cgitb filecmp syslog pandas.read_csv pandas.read_table h5py.File",
    _DELETES: "shutil os.remove os.unlink os.rmdir os.removedirs os.rename os.replace os.truncate posix.remove"
    " posix.unlink posix.rmdir posix.rename nt.remove nt.unlink distutils.file_util distutils.dir_util",
    _NETWORK: "socket _socket _ssl ssl socketserver urllib.request urllib.robotparser"
    " urllib.urlopen urllib.urlretrieve urllib.URLopener urllib.FancyURLopener urllib2 urllib3 requests httpx aiohttp http httplib ftplib"
    " smtplib poplib imaplib nntplib telnetlib xmlrpc xmlrpclib asyncio websocket websockets grpc zmq boto3 botocore"
    " fsspec s3fs gcsfs wandb.restore huggingface_hub gdown wget webbrowser antigravity",
    _NATIVE: "ctypes _ctypes cffi _cffi_backend torch.ops.load_library torch.classes.load_library"
    " torch._ops._Ops.load_library torch._classes._Classes.load_library torch.utils.cpp_extension"
    " torch.cuda._compile_kernel numpy.ctypeslib cupy.RawKernel cupy.RawModule cupy._core cupy.cuda.compiler",
    _ATTRIBUTE: "builtins.getattr __builtin__.getattr builtins.setattr __builtin__.setattr builtins.delattr"
    " builtins.globals builtins.locals builtins.vars builtins.type builtins.object.__getattribute__ operator.attrgetter"
    " operator.methodcaller _operator.attrgetter _operator.methodcaller builtins.__dict__ builtins.super gc inspect",
    _INSTALLS: "pip ensurepip venv setuptools distutils conda uv",
    _DOWNLOADS: "torch.hub torch.utils.model_zoo nltk.download nltk.downloader transformers.dynamic_module_utils torchvision.datasets.utils"
    " datasets.load evaluate.load",
    "calls a function with arguments from the file": "functools.reduce operator.call _operator.call builtins.map builtins.filter"
    " __builtin__.apply __builtin__.map __builtin__.filter __builtin__.reduce itertools.starmap concurrent"
    " threading _thread sched atexit select selectors weakref.finalize contextlib.ExitStack torch.utils.data._utils.worker",
    "makes functions out of bytes of code": "types.CodeType types.FunctionType types.LambdaType types.MethodType"
    " builtins.code builtins.function cloudpickle dill._dill._create_code dill._dill new.function new.code"
    " marshal.loads lib2to3",
    "reaches the operating system: files, processes, commands": "os posix nt",
    "reaches the interpreter itself, all loaded modules included": "sys",
    "starts a debugger or breakpoint hook": "builtins.breakpoint builtins.input __builtin__.input __builtin__.raw_input",
    "ends the program": "builtins.exit builtins.quit os._exit posix._exit sys.exit os.abort posix.abort os.kill posix.kill"
    " signal faulthandler",
    "changes the settings of the process": "os.putenv os.environ os.chdir posix.putenv posix.chdir resource",
}

_OTHERS = {
    "argparse.Namespace": "a program's command-line options",
    "simple_parsing": "command-line options (simple-parsing)",
    "collections.defaultdict": "a dict with a default, which the function named with it gives",
    "collections.deque": "a queue",
    "collections": "one of Python's containers",
    "builtins": "one of Python's built-in types or functions",
    "__builtin__": "one of Python's built-in types or functions",
    "builtins.print": "prints text",
    "copyreg._reconstructor": "makes an object of the class named with it",
    "copy_reg._reconstructor": "makes an object of the class named with it",
    "copyreg": "part of how Python pickles objects",
    "_codecs": "encodes or decodes text",
    "datetime": "a date or time",
    "decimal": "a decimal number",
    "fractions": "a fraction",
    "uuid": "an identifier",
    "enum": "an enumeration",
    "pathlib": "the path of a file",
    "posixpath": "a function over the paths of files",
    "ntpath": "a function over the paths of files",
    "random.Random": "a random number generator",
    "random": "Python's random numbers",
    "re._compile": "a regular expression",
    "types.SimpleNamespace": "a bag of named values",
    "types": "one of Python's internal types",
    "typing": "a type annotation",
    "functools.partial": "a function with some of its arguments; that function is named, too",
    "inspect.Parameter": "a parameter of a function",
    "inspect.Signature": "the parameters of a function",
    "inspect._ParameterKind": "a kind of parameter of a function",
    "joblib.numpy_pickle.NumpyArrayWrapper": "a NumPy array as joblib stores it",
    "joblib": "part of joblib",
    "ruamel.yaml": "a configuration (ruamel.yaml)",
    "shutil.which": "looks for a program's path",
    "urllib": "part of Python's handling of addresses",
    "torch.distributed.distributed_c10d.GroupMember": "part of torch's process groups",
    "torch.distributed.distributed_c10d.ProcessGroup": "part of torch's process groups",
    "torch.distributed.distributed_c10d.ReduceOp": "part of torch's process groups",
    "keras": "part of Keras",
    "cupy": "part of CuPy",
    "nltk": "part of NLTK",
    "functools": "one of Python's helpers for functions",
    "operator": "one of Python's operators as a function",
    "logging.Logger": "a logger",
    "logging": "part of Python's logging",
    "dataclasses": "part of Python's data classes",
    "numpy": "part of NumPy",
    "numpy.core.multiarray._reconstruct": "makes a NumPy array",
    "numpy._core.multiarray._reconstruct": "makes a NumPy array",
    "numpy.core.multiarray.scalar": "a NumPy number",
    "numpy._core.multiarray.scalar": "a NumPy number",
    "numpy.core.numeric._frombuffer": "makes a NumPy array from bytes",
    "numpy._core.numeric._frombuffer": "makes a NumPy array from bytes",
    "numpy.ndarray": "a NumPy array",
    "numpy.dtype": "the type of a NumPy array's elements",
    "numpy.dtypes": "the type of a NumPy array's elements",
    "numpy.random": "NumPy's random numbers",
    "pandas": "part of pandas",
    "scipy": "part of SciPy",
    "sklearn": "part of scikit-learn",
    "torch": "part of torch, outside of what plain checkpoints need",
    "torch.nn.modules": "one of torch's layers: the file holds a whole module, not only its weights",
    "torch.nn": "part of torch.nn: the file holds more than weights",
    "torch.nn.parallel": "a wrapper of torch's for training on several GPUs",
    "torch.optim": "one of torch's optimizers or schedulers as a whole object",
    "torch.optim.lr_scheduler": "one of torch's learning rate schedulers as a whole object",
    "torch.cuda.amp": "part of torch's mixed precision",
    "torch.amp": "part of torch's mixed precision",
    "torch.utils.data": "one of torch's data sets or loaders",
    "torch.distributed": "part of torch's distributed training",
    "torch.distributed.tensor": "part of torch's distributed tensors (DTensor)",
    "torch.distributed._shard": "a sharded tensor, which only its own process group can load",
    "torch.distributed.fsdp": "part of torch's FSDP",
    "torch.distributed.checkpoint": "part of torch's distributed checkpoints",
    "torch._C": "part of torch's native code",
    "torch._C._distributed_c10d": "part of torch's process groups",
    "torch.jit": "part of TorchScript",
    "torch.jit._pickle": "part of TorchScript",
    "torch.ao": "part of torch's quantization",
    "torch.quantization": "part of torch's quantization",
    "torch.fx": "part of torch.fx, graphs of a model's operations",
    "torch._utils": "a helper of torch that makes tensors",
    "torchvision": "part of torchvision",
    "torchaudio": "part of torchaudio",
    "torchtext": "part of torchtext",
    "torchao": "part of torchao: quantized tensors",
    "torchmetrics": "one of torchmetrics' metrics",
    "torch_geometric": "part of PyTorch Geometric",
    "torchrec": "part of TorchRec",
    "lightning": "part of Lightning",
    "lightning_fabric": "part of Lightning Fabric",
    "pytorch_lightning": "part of PyTorch Lightning",
    "lightning_utilities": "part of Lightning",
    "omegaconf": "a configuration (OmegaConf)",
    "hydra": "part of Hydra, configurations",
    "ml_collections": "a configuration (ml_collections)",
    "easydict": "a configuration (EasyDict)",
    "addict": "a configuration (addict)",
    "munch": "a configuration (munch)",
    "yacs": "a configuration (yacs)",
    "box": "a configuration (Box)",
    "attr": "part of attrs",
    "attrs": "part of attrs",
    "pydantic": "part of pydantic",
    "fairseq": "part of fairseq",
    "fairseq2": "part of fairseq2",
    "transformers": "part of Hugging Face Transformers",
    "transformers.training_args": "the settings of a training with Hugging Face Transformers",
    "transformers.trainer_utils": "part of the Trainer of Hugging Face Transformers",
    "accelerate": "part of Hugging Face Accelerate",
    "peft": "part of Hugging Face PEFT",
    "diffusers": "part of Hugging Face Diffusers",
    "trl": "part of Hugging Face TRL",
    "tokenizers": "a tokenizer of Hugging Face",
    "datasets": "part of Hugging Face Datasets",
    "sentence_transformers": "part of Sentence Transformers",
    "timm": "part of timm, image models",
    "deepspeed": "part of DeepSpeed",
    "megatron": "part of Megatron-LM",
    "apex": "part of NVIDIA Apex",
    "transformer_engine": "part of NVIDIA Transformer Engine",
    "nemo": "part of NVIDIA NeMo",
    "colossalai": "part of Colossal-AI",
    "composer": "part of MosaicML Composer",
    "bitsandbytes": "part of bitsandbytes: quantized tensors",
    "mmengine": "part of MMEngine (OpenMMLab)",
    "mmcv": "part of MMCV (OpenMMLab)",
    "mmdet": "part of MMDetection (OpenMMLab)",
    "mmseg": "part of MMSegmentation (OpenMMLab)",
    "detectron2": "part of Detectron2",
    "fvcore": "part of fvcore",
    "ultralytics": "part of Ultralytics (YOLO)",
    "ultralytics.nn.tasks": "a YOLO model as a whole object (Ultralytics)",
    "models.yolo": "a YOLO model as a whole object (YOLOv5): loads only beside that repository's code",
    "models.common": "a layer of YOLO (YOLOv5): loads only beside that repository's code",
    "models.experimental": "a layer of YOLO (YOLOv5): loads only beside that repository's code",
    "espnet": "part of ESPnet",
    "espnet2": "part of ESPnet",
    "speechbrain": "part of SpeechBrain",
    "pyannote": "part of pyannote.audio",
    "TTS": "part of Coqui TTS",
    "whisper": "part of Whisper",
    "monai": "part of MONAI",
    "nnunet": "part of nnU-Net",
    "nnunetv2": "part of nnU-Net",
    "stable_baselines3": "part of Stable-Baselines3",
    "gym": "part of Gym",
    "gymnasium": "part of Gymnasium",
    "ray": "part of Ray",
    "wandb": "part of Weights & Biases",
    "tensorboard": "part of TensorBoard",
    "tensorflow": "part of TensorFlow",
    "jax": "part of JAX",
    "PIL": "a picture (Pillow)",
    "dgl": "part of DGL",
    "e3nn": "part of e3nn",
    "ase": "part of ASE, atoms",
    "pymatgen": "part of pymatgen, materials",
    "spacy": "part of spaCy",
    "__main__": "a class or function of the script that saved the file: it loads only where that script defines it too",
    "__mp_main__": "a class or function of the script that saved the file: it loads only where that script defines it too",
}

PACKAGES = frozenset(
    (
        *(
            "asyncio",
            "collections",
            "compression",
            "concurrent",
            "ctypes",
            "curses",
            "dbm",
            "distutils",
            "email",
            "encodings",
        ),
        *(
            "ensurepip",
            "html",
            "http",
            "idlelib",
            "importlib",
            "json",
            "lib2to3",
            "logging",
            "multiprocessing",
            "os",
            "pathlib",
        ),
        *(
            "profiling",
            "pydoc_data",
            "re",
            "sqlite3",
            "string",
            "sysconfig",
            "test",
            "tkinter",
            "tomllib",
            "turtledemo",
        ),
        *("unittest", "urllib", "venv", "wsgiref", "xml", "xmlrpc", "zipfile", "zoneinfo"),
    )
)
"""Modules of Python's standard library that have modules in them. Of any other, code.model is somebody's own package."""

MEANINGS: dict[str, tuple[str, bool]] = {name: (text, False) for name, text in _OTHERS.items()} | {
    name: (text, True) for text, names in _DANGEROUS.items() for name in names.split()
}
MEANINGS["(computed)"] = (
    "a name that is put together as the file is loaded, so that nobody can tell what it calls",
    True,
)
