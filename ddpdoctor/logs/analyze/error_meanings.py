"""What the words of torch, and of libraries around it, say of the script, by their sources.

An exception's message tells what is refused; this tells why a training comes to that, and what mends it.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.facts.log import LoggedException


class Meaning(NamedTuple):
    """What a library's words about its own state say of the script.

    begins: a pattern of what the message begins with. cause: the names of its groups stand in braces. exception: of exceptions of that name
    alone; code: a pattern of the line that raised it.
    """

    begins: str
    cause: str
    fixes: tuple[Fix, ...]
    exception: str = ""
    code: str = ""


_SHOW_GRADIENTS: Final = (
    "print([n for n, p in model.named_parameters() if p.requires_grad][:5], loss.grad_fn)   # in the script, before backward()",
    "print(sum(p.grad is not None for g in optimizer.param_groups for p in g['params']))   # in the script, after backward()",
)
_SHOW_DTYPES: Final = (
    "print({(p.dtype, p.requires_grad) for p in model.parameters()})   # in the script, before the training",
)
_MEANINGS: Final = (
    # torch/amp/grad_scaler.py counts the devices on which an optimizer's parameters have gradients.
    Meaning(
        "No inf checks were recorded for this optimizer",
        "GradScaler found no gradient at all in that optimizer's parameters: backward() reached none of them. They are frozen, or the loss is "
        "cut off from them (made anew by torch.tensor(...), by .item(), .detach() or within no_grad()), or the optimizer has other parameters "
        "than the model.",
        (
            Fix(
                "See before scaler.step() whether any of them has a gradient, and before backward() whether the loss has a grad_fn",
                _SHOW_GRADIENTS,
            ),
        ),
    ),
    # torch/csrc/autograd/engine.cpp
    Meaning(
        "element 0 of tensors does not require grad and does not have a grad_fn",
        "backward() was called of a loss that depends on no parameter that is trained: all are frozen, or the loss is cut off from them (made "
        "anew by torch.tensor(...), by .item(), .detach() or within no_grad()), or gradient checkpointing (use_reentrant=True) was given inputs "
        "that need no gradient.",
        (Fix("See which parameters are trained, and whether the loss has a grad_fn", _SHOW_GRADIENTS),),
    ),
    # torch/distributed/distributed_c10d.py
    Meaning(
        "Default process group ",
        "Something that speaks to other ranks was called (a collective, SyncBatchNorm, a DistributedSampler, DistributedDataParallel), and this process has no "
        "process group: it was started as a single one, without a launcher, or init_process_group() is called later, or not at all.",
        (
            Fix("Start it with a launcher, even for a single GPU, and call dist.init_process_group() first", ("torchrun --nproc-per-node=1 train.py ...",)),
            Fix("Or let the script do without: BatchNorm in the place of SyncBatchNorm (norm_cfg type 'BN'), no DistributedSampler, and collectives behind dist.is_initialized()"),
        ),
    ),
    # torch/distributed/distributed_c10d.py
    Meaning(
        "trying to initialize the default process group twice",
        "init_process_group() was called, and this process has a process group already: the script calls it where a library (Accelerate, Lightning, DeepSpeed) has done so, "
        "or calls it for a second time, in a notebook's cell, a test, or a second fit().",
        (
            Fix("Call it once, and only where nobody has", ("if not dist.is_initialized(): dist.init_process_group('nccl')   # in the script",)),
            Fix("Before a second run in the same process: dist.destroy_process_group()"),
        ),
    ),
    # torch/distributed/run.py
    Meaning(
        r"nnodes=(?P<nodes>[\d:]{1,40}) is not in \"MIN:MAX\" format",
        "torchrun can't read --nnodes={nodes}: it takes one number, or the smallest and the largest with one colon between.",
        (Fix("Give it a number, or two", ("torchrun --nnodes=2 ...   # or --nnodes=2:4",)),),
    ),
    # The CUDA runtime's own words, of what a kernel was started with.
    Meaning(
        "CUDA error: too many resources requested for launch",
        "A kernel wants more registers or shared memory for each block than this GPU has: mostly one of an extension or of the script's own, with too many threads a block, "
        "compiled without optimisation (-G) or for another GPU.",
        (
            Fix("See which kernel it is", ("export CUDA_LAUNCH_BLOCKING=1",)),
            Fix("Build that extension for this GPU, without debug flags, or let its kernel have fewer threads (__launch_bounds__, a smaller block size); a newer release may do"),
        ),
    ),
    Meaning(
        "CUDA error: invalid configuration argument",
        "A kernel was started with a number of blocks or threads that CUDA doesn't take: mostly 0, as an input is empty (a batch without boxes, points or words), or more than there "
        "may be, of a tensor that is very large in one dimension.",
        (
            Fix("See which call it is", ("export CUDA_LAUNCH_BLOCKING=1",)),
            Fix("Print the shapes before that call; leave empty inputs out, and split very large ones", ("print(x.shape)   # in the script, before the call",)),
        ),
    ),
    Meaning(
        "CUDA error: operation not permitted when stream is capturing",
        "While a CUDA graph is recorded (torch.cuda.graph, torch.compile mode='reduce-overhead', vLLM), something was called that waits for the GPU or takes memory: "
        ".item(), .cpu(), print() of a tensor, a synchronisation, a first use of cuBLAS or NCCL, or a thread of a DataLoader or of NCCL's watchdog.",
        (
            Fix("Do without graphs to see whether the rest works: mode='default' of torch.compile, enforce_eager=True of vLLM"),
            Fix("Warm up on a side stream before recording, keep what waits out of it, and let other threads go on: torch.cuda.graph(g, capture_error_mode='thread_local')"),
        ),
    ),
    Meaning(
        "CUDA error: peer mapping resources exhausted",
        "A GPU can open the memory of eight others at most, and one process wants more: mostly DataParallel, or a copy between GPUs, on a host with more than nine.",
        (
            Fix("Show each process eight GPUs at most", ("export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",)),
            Fix("Or train with DistributedDataParallel, one process for each GPU; NCCL_P2P_DISABLE=1 does without peer-to-peer copies"),
        ),
    ),
    # aten/src/ATen/cudnn/Exceptions.h
    Meaning(
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED\\. This error may appear if you passed in a non-contiguous input",
        "cuDNN has no algorithm for what it was given: an input that isn't contiguous (after transpose, permute or a slice), one with more than 2^31 values, or a data type that this GPU doesn't do.",
        (
            Fix("Hand over a contiguous tensor, and split very large ones", ("x = x.contiguous()   # in the script, before the layer",)),
            Fix("See whether it is cuDNN alone that refuses it", ("torch.backends.cudnn.enabled = False   # in the script",)),
        ),
    ),
    # vllm/v1/core/kv_cache_utils.py, vllm/worker/worker.py
    Meaning(
        "No available memory for the cache blocks",
        "vLLM may use a share of the GPU (gpu_memory_utilization), and the model's weights and one step alone fill it: nothing is left for its cache.",
        (
            Fix("Let it have more, where nobody else is on the GPU: gpu_memory_utilization=0.95; in training beside it (colocated), free or move away what training holds first", ("nvidia-smi",)),
            Fix("Or need less: a smaller max_model_len and max_num_seqs, a quantised model, tensor_parallel_size over more GPUs"),
        ),
    ),
    # torch/nn/parallel/distributed.py, data_parallel.py: what the model has of its own, its wrapper hasn't.
    *(
        Meaning(
            f"'{wrapper}' object has no attribute",
            f"{wrapper} wraps the model, and has only what torch gives it: the model's own methods and attributes are those of model.module.",
            (Fix("Ask the model within for it, with and without a wrapper", ("inner = getattr(model, 'module', model)   # in the script",)),),
        )
        for wrapper in ("DistributedDataParallel", "DataParallel")
    ),
    # torch/nn/parallel/replicate.py: since torch 1.5 a replica has no parameters of its own.
    Meaning(
        "Caught StopIteration in replica",
        "The model asks within forward() for its first parameter (next(self.parameters()), mostly for its device or dtype): of the replicas that DataParallel makes "
        "since torch 1.5 none has parameters.",
        (
            Fix("Take device and dtype from an input (x.device, x.dtype), or from a buffer"),
            Fix("Or train with DistributedDataParallel, one process for each GPU, where every rank has parameters"),
        ),
    ),
    # torch/csrc/autograd/saved_variable.cpp
    Meaning(
        "one of the variables needed for gradient computation has been modified by an inplace operation",
        "A tensor that backward() still needs was changed in place after the forward pass: by an operation such as x += y, relu_(), ReLU(inplace=True) or "
        "x[...] = y, by an optimizer's step between forward and backward, or, with DDP, by a second forward pass, which broadcasts buffers anew.",
        (
            Fix("Let torch show the line of the forward pass whose result was changed", ("torch.autograd.set_detect_anomaly(True)   # in the script",)),
            Fix("Write that operation out of place (x = x + y, x.clone()); under DDP with two forward passes broadcast_buffers=False may do"),
        ),
    ),
    # torch/csrc/autograd/engine.cpp, saved_variable.cpp
    Meaning(
        "Trying to backward through the graph a second time",
        "The loss of this step still hangs on a graph that an earlier backward() has used up and freed: a hidden state, a loss that was added up, or "
        "an output that was kept from the step before, without .detach().",
        (Fix("Detach what is kept from one step to the next; retain_graph=True only where one graph is meant to serve several losses"),),
    ),
    # torch/utils/data/_utils/collate.py
    Meaning(
        "stack expects each tensor to be equal size",
        "The DataLoader stacks the samples of a batch, and they are of different sizes.",
        (Fix("Crop, resize or pad all samples to one size in the data set, or give the DataLoader a collate_fn that does; batch_size=1 shows that it is this"),),
    ),
    # torch/amp/grad_scaler.py: the scaler takes gradients of float32, which autocast gives where the parameters are of float32.
    Meaning(
        "Attempting to unscale FP16 gradients",
        "Mixed precision by fp16 (GradScaler) needs parameters of float32, and those that are trained here were loaded, or cast, to float16.",
        (
            Fix(
                "Load the model in float32 (no .half(), no torch_dtype=torch.float16), and let autocast choose; of a model with adapters cast what "
                "is trained; this shows the dtypes",
                _SHOW_DTYPES,
            ),
        ),
    ),
    # aten/src/ATen/native/cuda/AmpKernels.cu has no kernel for bfloat16.
    Meaning(
        "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
        "Mixed precision by fp16 (GradScaler) is switched on, and the parameters that are trained are of bfloat16: bfloat16 needs no scaling, and "
        "the scaler takes none.",
        (
            Fix(
                "Train in bfloat16 without a scaler (of the Trainer bf16=True and fp16=False), or load the model in float32; this shows the dtypes",
                _SHOW_DTYPES,
            ),
        ),
    ),
    # safetensors: bindings/python/py_src/safetensors/torch.py
    Meaning(
        "Some tensors share memory, this will lead to duplicate memory on disk",
        "safetensors saves no tensor twice, and refuses a model in which two names stand for the same memory: mostly tied weights (embeddings and "
        "output layer) that the model's class doesn't declare, as where it is wrapped in another module, or was changed after it was loaded.",
        (
            Fix(
                "Save by what knows tied weights, in the place of save_file(model.state_dict(), ...); in the script",
                ("safetensors.torch.save_model(model, 'model.safetensors')",),
            ),
            Fix("Of transformers' Trainer, where its release has that: TrainingArguments(..., save_safetensors=False)"),
        ),
    ),
    # caffe2/serialize/inline_container.cc
    Meaning(
        "Parent directory ",
        "The file is to be written into a folder that isn't there: torch.save() makes none. A relative path counts from the folder in which the job "
        "was started.",
        (Fix("Make the folder before it is written to; in the script, on one rank", ("os.makedirs(os.path.dirname(path), exist_ok=True)",)),),
    ),
    # HDF5: src/H5FDsec2.c, H5F.c, as h5py passes them on
    Meaning(
        r"(?:\[Errno \d+\] )?Unable to (?:synchronously )?(?:open|create) file \(unable to lock file",
        "HDF5 locks the files that it opens, and could not: another process, or another rank, has it open for writing, or the file system takes no locks (NFS, Lustre).",
        (
            Fix("Open it for reading alone, h5py.File(path, 'r'), in every process; see which has it open", ("lsof FILE",)),
            Fix("Where all only read it, let HDF5 do without locks", ("export HDF5_USE_FILE_LOCKING=FALSE",)),
        ),
    ),
    Meaning(
        r"(?:\[Errno \d+\] )?Unable to (?:synchronously )?open file \((?:truncated file: eof = (?P<has>\d+), .*stored_eof = (?P<wants>\d+)|file signature not found)",
        "That HDF5 file is damaged: a download or a copy that was cut short, a program that was killed as it wrote it, or a git-lfs pointer or a web page in its place. The file "
        "itself says how long it was when it was whole.",
        (
            Fix("See how long it is, and what it is", ("ls -l FILE; file FILE; head -c 100 FILE",)),
            Fix("Fetch or make it anew, and compare its checksum with the source's", ("sha256sum FILE",)),
        ),
    ),
    Meaning(
        r"(?:\[Errno \d+\] )?Can't (?:synchronously )?read data \(",
        "HDF5 read other bytes than were written. With a DataLoader's workers, mostly the file was opened before they were forked: they share its place in the file, and read over each "
        "other. Else the file is damaged.",
        (
            Fix("Open it in each worker, at its first sample, and not in __init__", ("if self.file is None: self.file = h5py.File(self.path, 'r')   # in __getitem__",)),
            Fix("See with num_workers=0 whether the file itself can be read", ("h5dump -H FILE > /dev/null && echo its structure is whole",)),
        ),
    ),
    # Python's pickle, on what py-lmdb and h5py hand it
    Meaning(
        r"can(?:'t|not) pickle '?Environment'? objects?$|h5py objects cannot be pickled",
        "The data set holds a file that it has opened already (lmdb, h5py), and can't be handed to workers, which are started afresh (spawn).",
        (Fix("Open it in each worker, at its first sample, and not in __init__", ("if self.env is None: self.env = lmdb.open(self.path, readonly=True, lock=False)   # in __getitem__",)),),
    ),
    # zlib, as Python passes it on
    Meaning(
        r"Error -[35] while decompressing data: |Error -[35] while decompressing: |CRC check failed 0x|Compressed file ended before the end-of-stream marker was reached",
        "A compressed file is damaged: a download or a copy of it was cut short, or several processes wrote it at once.",
        (Fix("Find which of the files it is, and fetch that anew", ("find DATA -name '*.gz' -exec gzip -t {} ';'",)),),
    ),
    # pyarrow: cpp/src/arrow/json, as datasets passes it on
    Meaning(
        r"JSON parse error: ",
        "A line of a JSON file is none, or has a field of another type than the lines before it (text, number, list and object can't be mixed in one column).",
        (
            Fix("Find the line that is no JSON", ("python -c \"import json,sys; [json.loads(l) for l in open(sys.argv[1])]\" FILE",)),
            Fix("Where each line is right, give the field the same type in all of them, and all files the same fields"),
        ),
    ),
    # sqlite: src/main.c, as Python's sqlite3 and SQLAlchemy pass it on
    Meaning(
        r"(?:\(sqlite3\.OperationalError\) )?database is locked",
        "Another process writes to that SQLite file, mostly another rank or another worker with the same study, cache or tracking store; on NFS and Lustre its locks don't work well, either.",
        (
            Fix("Let rank 0 alone write to it, and put it on a local disk"),
            Fix("For many processes take a server's database (optuna: JournalStorage, PostgreSQL or MySQL; MLflow: its tracking server)"),
        ),
    ),
    # Windows' own words
    Meaning(
        r"\[WinError 206\] ",
        "Windows takes a path of at most 260 characters, or a command of 32767, unless long paths are switched on.",
        (
            Fix(
                "Switch long paths on, as administrator in PowerShell, and start anew",
                (r"New-ItemProperty HKLM:\SYSTEM\CurrentControlSet\Control\FileSystem -Name LongPathsEnabled -Value 1 -PropertyType DWORD -Force",),
            ),
            Fix("Or work in a folder near the root, such as C:\\w, and keep caches there, too"),
        ),
    ),
    # Megatron-LM: training/arguments.py
    Meaning(
        r".{0,200}\brequires? setting the environment variable (?P<name>[A-Z][A-Z0-9_]+) to (?P<value>\w+)",
        "The environment variable {name} isn't {value} where the ranks start: the launcher, ssh or the container didn't hand it on, or nobody set it. Of Megatron's, it keeps the order in "
        "which kernels and communication are started.",
        (Fix("Set it for all ranks, before they start", ("export {name}={value}",)),),
    ),
    # transformers: modeling_utils.py
    Meaning(
        "FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package (?:flash_attn seems to be not|for FlashAttention2 doesn't seem to be) installed",
        "The model, or the script, asks for FlashAttention 2, and the package flash-attn isn't installed in this environment.",
        (
            Fix("Train with torch's own attention, which needs no package", ('model = AutoModel.from_pretrained(..., attn_implementation="sdpa")   # in the script',)),
            Fix("Or install it for this torch and CUDA", ("pip install flash-attn --no-build-isolation",)),
        ),
    ),
    # torch 0.2 to 1.0: torch/lib/THD/process_group/General.cpp; torch/distributed/distributed_c10d.py
    Meaning(
        r"the MPI backend is not available; try to recompile the THD package|Distributed package doesn't have MPI built in",
        "The backend mpi was asked for, and no wheel of torch has it: it is only in a torch that was built from source on a host with MPI.",
        (Fix("Take NCCL for GPUs, and Gloo for CPUs; mpirun can start the ranks of those, too", ('dist.init_process_group("nccl")   # in the script',)),),
    ),
    # fairseq: trainer.py
    Meaning(
        r"Fatal error: gradients are inconsistent between workers",
        "fairseq found that the norm of the gradients differs between ranks after they were averaged. A single rank that is off by little mostly computes otherwise (another GPU, another "
        "library); one that is far off has left a part of the model out of a step, or has other weights.",
        (
            Fix("Let the ranks use alike GPUs and the same environment"),
            Fix("Where parameters are shared or used several times, let fairseq average the gradients itself", ("fairseq-train ... --ddp-backend=legacy_ddp   # before 0.10.2: no_c10d",)),
        ),
    ),
    # aten/src/ATen/native/Convolution.cpp, aten/src/ATen/TensorUtils.cpp; torch before 1.5 as well
    Meaning(
        r"Input type \(torch\.(?!cuda)\w+\) and (?:weight|bias) type \(torch\.cuda|Input type \(torch\.cuda\.\w+\) and (?:weight|bias) type \(torch\.(?!cuda)"
        r"|Expected object of (?:backend|device type) (?:(?:CUDA|cuda) but got (?:backend|device type) (?:CPU|cpu)|(?:CPU|cpu) but got (?:backend|device type) (?:CUDA|cuda))"
        r"|Expected all tensors to be on the same device, but found at least two devices, (?:cpu and cuda|cuda:\d+ and cpu)"
        r"|Expected all tensors to be on the same device, but got \w+ is on (?:cpu, different from other tensors on cuda|cuda:\d+, different from other tensors on cpu)",
        "A tensor in the host's memory meets one on a GPU: an input wasn't moved, or a tensor that the model makes anew (torch.zeros(...), a mask, positions), or a part "
        "of the model is neither a registered submodule nor a parameter or buffer, so that model.to() doesn't take it along.",
        (Fix("Move what is handed over, and make new tensors where the input is", ("mask = torch.zeros(size, device=x.device)   # in the script",)),),
    ),
    # aten/src/ATen/native/Convolution.cpp, LinearAlgebra.cpp, Blas.cpp, TensorUtils.cpp
    Meaning(
        r"Input type \((?P<got>[\w.:]+)\) and (?:weight|bias) type \((?P<of>[\w.:]+)\) should be the same|expected scalar type (?P<of_>\w+) but found (?P<got_>\w+)$"
        r"|(?:expected )?m(?:at)?1 and m(?:at)?2 (?:must|to) have the same dtype|expected mat1 and mat2 to have the same dtype"
        r"|Index put requires the source and destination dtypes match|self and mat2 must have the same dtype",
        "Two tensors of different dtypes meet: mostly the weights of one part of the model were loaded in, or cast to, half precision (.half(), torch_dtype=..., bf16), "
        "and what they are given was not, or the other way round. Outside of autocast torch converts nothing.",
        (
            Fix("Let autocast choose around the forward pass, where the model is used for evaluation or decoding, too", ('with torch.autocast("cuda", dtype=torch.bfloat16):   # in the script',)),
            Fix("Or cast what is handed over to the layer's dtype; this shows which dtypes the model has", ("x = x.to(layer.weight.dtype)   # in the script", *_SHOW_DTYPES)),
        ),
    ),
    # aten/src/ATen/native/cpu: kernels that have no float16
    Meaning(
        r"\"(?:\w*_cpu\w*|LayerNormKernelImpl|\w+_lastdim_kernel_impl|baddbmm_with_gemm|compute_indices_weights_\w+)\" not implemented for 'Half'",
        "That operation has no kernel for float16 on the CPU: the model was loaded in half precision, and at least this part of it runs on the CPU, as where no GPU was found, "
        "or a device_map, or offloading, has put it there.",
        (
            Fix("See whether that Python sees a GPU", ('python -c "import torch; print(torch.version.cuda, torch.cuda.is_available(), torch.cuda.device_count())"',)),
            Fix("On the CPU load the model in float32 or bfloat16 (torch_dtype=torch.float32)"),
        ),
    ),
    # aten/src/ATen/native/LinearAlgebra.cpp
    Meaning(
        r"(?:mat1 and mat2 shapes cannot be multiplied \(|size mismatch, m1: \[)\d+ ?x ?(?P<got>\d+)(?: and |\], m2: \[)(?P<wants>\d+) ?x ?\d+",
        "A linear layer takes {wants} features, and was given {got}: the layer before it, the backbone, the size of the pictures, or the flattening is another one than it was made for.",
        (Fix("Print the shape before that layer, and make the layer for {got} features, or give it what it was made for", ("print(x.shape)   # in the script, before the layer",)),),
    ),
    # aten/src/ATen/native/Convolution.cpp
    Meaning(
        r"Given groups=\d+, weight of size \[[\d, ]+\], expected input\[[\d, ]+\] to have (?P<wants>\d+) channels, but got (?P<got>\d+) channels",
        "A convolution takes {wants} channels, and was given {got}: pictures that are grey or have an alpha channel, another backbone or option than the model was made "
        "with, or dimensions in another order.",
        (Fix("Give it {wants} channels (pictures: image.convert('RGB')), or make the layer for {got}; this shows the shapes", ("print(x.shape)   # in the script, before the layer",)),),
    ),
    # aten/src/ATen/native/LossNLL.cpp
    Meaning(
        r"Target (?P<label>-?\d+) is out of bounds",
        "A label is {label}, and the model has fewer classes: labels count from 0, and the number of classes (the last layer's outputs) must be above the largest one.",
        (Fix("See the labels' range, and make the last layer for it, or shift the labels", ("print(labels.min(), labels.max(), outputs.shape)   # in the script, before the loss",)),),
    ),
    # aten/src/ATen/native/Embedding.cpp, TensorAdvancedIndexing.cpp on the CPU
    Meaning(
        "index out of range in self",
        "An embedding was asked for a row that it hasn't got: a token that isn't in the vocabulary that the model was made with (tokens were added, or the tokenizer is another "
        "model's), a text longer than the position embeddings, or an index that is negative.",
        (
            Fix("See the largest index beside the embedding's size", ("print(ids.min(), ids.max(), model.get_input_embeddings().num_embeddings)   # in the script",)),
            Fix("After adding tokens: model.resize_token_embeddings(len(tokenizer)); of long texts truncation=True, max_length=..."),
        ),
    ),
    # Lib/bdb.py
    Meaning(
        "",
        "A breakpoint (breakpoint(), pdb.set_trace()) is left in the script: a job has no terminal, its input is at its end at once, and so the debugger quits.",
        (Fix("Take it out; those of breakpoint() can be passed over", ("export PYTHONBREAKPOINT=0",)),),
        exception="bdb.BdbQuit",
    ),
    # torch/_dynamo/exc.py
    Meaning(
        "",
        "torch.compile was to make one graph of code (fullgraph=True, or an export), and met what this release of torch can't trace: a package that is newer than this "
        "torch expects, or code of the script's own.",
        (
            Fix("See whether it trains without torch.compile: slower, and the same results", ("export TORCHDYNAMO_DISABLE=1",)),
            Fix("Take a newer torch, or the release of the package that was current with this one"),
        ),
        exception="torch._dynamo.exc.Unsupported",
    ),
    # Modules/mathmodule.c
    Meaning(
        "math range error",
        "A number is too large for a float: mostly math.exp(loss), the perplexity, of a loss that has diverged, or that isn't a mean.",
        (Fix("See the loss before that line; a perplexity may be given as infinity", ("print(loss)   # in the script, before that line",)),),
    ),
    # PyYAML 6: lib/yaml/__init__.py
    Meaning(
        r"load\(\) missing 1 required positional argument: 'Loader'",
        "yaml.load() is called as older releases of PyYAML took it: since 6.0 it has to be told how to read.",
        (
            Fix("Take an older PyYAML", ("python -m pip install 'pyyaml<6'",)),
            Fix("Or read it safely", ("yaml.safe_load(file)   # in the script, in the place of yaml.load(file)",)),
        ),
    ),
    # omegaconf 2.1's release notes
    Meaning(
        r"Missing key pretty$|Key 'pretty' is not in struct|'\w+' object has no attribute 'pretty'",
        "cfg.pretty() is gone from OmegaConf since 2.1: the code is of an older release.",
        (
            Fix("Take the release that the code was written for", ("python -m pip install 'omegaconf<2.1'",)),
            Fix("Or print it as it is done now", ("print(OmegaConf.to_yaml(cfg))   # in the script",)),
        ),
    ),
    # Python's own exception, by the code of its line
    Meaning(
        "(?:float |integer )?division|integer modulo",
        "What is divided by counts samples, batches or steps, and there are none: the data set is empty (a wrong path, a filter that leaves nothing), or smaller than one "
        "batch, which drop_last leaves out, or than one batch for each rank.",
        (
            Fix("See how many samples and batches there are", ("print(len(dataset), len(loader))   # in the script, before that line",)),
            Fix("Mend the path to the data, or take a smaller batch, or drop_last=False"),
        ),
        exception="ZeroDivisionError",
        code=r"(?i)\blen\(|epoch|batch|loader|sampler|samples|steps|iters|num_",
    ),
    # torch/autograd/__init__.py
    Meaning(
        "grad can be implicitly created only for scalar outputs",
        "backward() was called of a loss that is no single number: DataParallel returns one for each GPU, and a loss with reduction='none' one for each sample.",
        (Fix("Take its mean first", ("loss.mean().backward()   # in the script",)),),
    ),
    # torch/csrc/utils/tensor_numpy.cpp
    Meaning(
        r"can't convert (?:cuda:\d+|CUDA) (?:device type )?tensor to numpy",
        "NumPy was handed a tensor that is on a GPU, whose memory it can't read.",
        (Fix("Copy it to the host first", ("x.detach().cpu().numpy()   # in the script",)),),
    ),
    # deepspeed/runtime/zero/partition_parameters.py leaves the shape [0]
    Meaning(
        r"weight should have at least three dimensions|'weight' must be 2-D|Function \w+ returned an invalid gradient at index \d+ - got \[(?:\d+, )*0\]",
        "A parameter is empty, as ZeRO-3 and FSDP leave those that they have divided among the ranks: it was used outside of the forward pass of the module that it is of, in one that was "
        "loaded or changed after the model was divided, or in a copy.",
        (Fix("Gather it for as long as it is used, or train without dividing parameters (ZeRO-2)", ("with deepspeed.zero.GatheredParameters(module.parameters()):   # in the script",)),),
    ),
    # aten/src/ATen/MapAllocator.cpp
    Meaning(
        r"unable to open file <(?P<file>[^>]{1,4000})> in read-only mode: No such file or directory",
        "{file} isn't there: mostly a link in a cache (Hugging Face's snapshots are links) whose file was removed, or wasn't fetched to its end.",
        (Fix("See which part of the path is missing; of a cache remove that model's folder, and fetch it again on one rank before the others start"),),
    ),
)  # fmt: skip


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def meaning_of(raised: LoggedException) -> Meaning | None:
    """Return what an exception means, where a library's source tells that."""
    code = raised.frames[-1].code if raised.frames else ""
    for meaning in _MEANINGS:
        if meaning.exception not in ("", raised.exception) or not _pattern(meaning.code).search(code):
            continue
        if found := _pattern(meaning.begins).match(raised.message):
            return _with_words(meaning, found.groupdict(""))
    return None


def _with_words(meaning: Meaning, words: dict[str, str]) -> Meaning:
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    fixes = tuple(
        msgspec.structs.replace(
            fix, text=_filled(fix.text, words), commands=tuple(_filled(command, quoted) for command in fix.commands)
        )
        for fix in meaning.fixes
    )
    return meaning._replace(cause=_filled(meaning.cause, words), fixes=fixes)


def _filled(text: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text
