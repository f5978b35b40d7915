"""The inside of every session's container, common to all runtimes: variables, folders, GPU devices."""

from __future__ import annotations

from .runtime import ContainerRequest

#: PATH inside: the default image's programs, conda's, then the system's.
PATH = "/opt/venv/bin:/opt/conda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: A writable folder of a session, in memory.
LAYER = "/layer"
#: Variables that Slurm sets for a job's GPUs, and that their drivers read. Only Slurm sets them.
GPU_NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "GPU_DEVICE_ORDINAL",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
)
#: Device nodes of GPUs and fast networks, if they exist. The job's cgroup decides which of them can be opened.
GPU_DEVICES = (
    *(f"/dev/nvidia{number}" for number in range(16)),
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/nvidia-caps",
    "/dev/dri",
    "/dev/kfd",
    "/dev/infiniband",
)
#: The driver's libraries, which must match the node's kernel module.
DRIVER_LIBRARIES = (
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-gpucomp.so",
    "libnvidia-ml.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opticalflow.so.1",
    "libnvidia-ptxjitcompiler.so.1",
)
LIBRARY_FOLDERS = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")


def environ(request: ContainerRequest) -> dict[str, str]:
    """Return the variables with values inside."""
    own = {"HOME": request.home, "PATH": PATH, "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
    if request.user:
        own |= {"USER": request.user, "LOGNAME": request.user}
    if not request.gpus:
        own["CUDA_VISIBLE_DEVICES"] = ""  # otherwise all GPUs are visible on a node that does not confine devices
    return own | dict(request.environ)


def pass_env(request: ContainerRequest) -> tuple[str, ...]:
    """Return the names of the job's variables that are passed in if they are set."""
    return tuple(dict.fromkeys((*request.pass_env, *(GPU_NAMES if request.gpus else ()))))


def workdir(request: ContainerRequest) -> str:
    """Return the folder in which the command starts."""
    return request.workdir or request.home


def folders(request: ContainerRequest) -> tuple[str, ...]:
    """Return the user's own folders, read-write at the same path: home, and the session folder if it is outside."""
    inside_home = request.session_folder.startswith(request.home.rstrip("/") + "/")
    return (request.home,) if inside_home else (request.home, request.session_folder)
