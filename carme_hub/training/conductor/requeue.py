"""A run of a batch job that another job continues (``--submit --requeue``): what is written at the end of the first.

Followers and the exit status know the end of this job; on disk the run waits for the next one from the same moment on,
so nobody who looks sees it as finished in between.
"""

from __future__ import annotations

import time

from carme_hub.training.here import OUT_OF_TIME
from carme_hub.training.run.run_folder import Run, State
from carme_hub.training.run.run_options import RunOptions

#: A job that was told of the end of its time so soon has done nothing, and so many in a row are a mistake.
SHORT_SECONDS, MOST_SHORT = 60.0, 3
WAITS = "Its time was over, and another job will continue it."
TOO_SHORT = (
    "{} jobs in a row were told at once that their time is nearly over, so no other continues the run. Set a longer "
    "--time, or a smaller `before` of here.on_time_limit."
)


def continuation(run: Run, options: RunOptions, end: State, began: float) -> State:
    """Return what is written of the end of a run instead, {} = nothing else: the run waits for its next job.

    Args:
        end: state and message. It is changed where the run is not continued though its time was over.
        began: when this job began to conduct it, by the monotonic clock.
    """
    over = options.submit and options.requeue and end["state"] == "finished" and (run.folder / OUT_OF_TIME).exists()
    if not over:
        return {}
    job = run.batch_job()
    short = int(job.get("short") or 0) + 1 if time.monotonic() - began < SHORT_SECONDS else 0
    if short >= MOST_SHORT:
        end.update(state="failed", message=TOO_SHORT.format(short))
        return {}
    run.set_batch_job(job | {"state": "waiting", "said": WAITS, "continued": True, "short": short})
    return {"state": "waiting", "conductor": None, "ended": 0.0, "nodes": []}
