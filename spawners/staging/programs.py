"""The programs that make and empty scratch folders, as files of a node. ``carme-hub staging install`` writes them."""

from __future__ import annotations

from pathlib import Path

from carme_hub.node import program
from carme_hub.paths import share_folder

#: Names of the files beside carme-stage-out, and the programs of ``carme_hub.node`` that they are.
FILES = {
    "carme-stage": "staging/mover",
    "carme-stage-files": "staging/files",
    "carme-stage-journal": "staging/journal",
    "carme-stage-remote": "staging/remote",
    "carme-stage-mount": "staging/mount",
    "carme-stage-report": "staging/report",
    "carme-stage-scratch": "staging/scratch",
    "carme-stage-processes": "staging/processes",
}
MAIN = "carme-stage-out"
#: What slurm.conf's Prolog and Epilog name. A job that asks for no scratch folder costs a shell and no more.
_PROLOG = """\
#!/bin/sh
case "$SLURM_JOB_COMMENT" in *carme-stage*) exec "{folder}/carme-stage-out" prolog ;; esac
"""
_EPILOG = '#!/bin/sh\nexec "{folder}/carme-stage-out" epilog\n'


def node_texts(folder: Path) -> dict[str, str]:
    """Return the programs for a folder of nodes, with the two that Slurm calls without an argument, by their names."""
    texts = {name: program(source) for name, source in FILES.items()}
    texts[MAIN] = (share_folder() / "libexec" / MAIN).read_text(encoding="utf-8")
    texts["carme-stage-prolog"] = _PROLOG.format(folder=folder)
    texts["carme-stage-epilog"] = _EPILOG.format(folder=folder)
    return texts


def write_programs(folder: Path) -> Path:
    """Write the programs of ``node_texts``; return the folder's absolute path."""
    folder = folder.absolute()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, text in node_texts(folder).items():
        new = folder / f".{name}.new"
        new.write_text(text, encoding="utf-8")
        new.chmod(0o755)
        new.replace(folder / name)
    return folder
