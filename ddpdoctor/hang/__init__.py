"""Why a running job hangs: its ranks' stacks, flight recorders and NCCL's RAS, and the verdict on them: `ddpdoctor jobs --hang`.

In comes a job of this host, or dumps; out goes one cause with the ranks whose it is.
"""

__all__ = [
    "certainty",
    "debug_server",
    "evidence",
    "examining",
    "fixes",
    "flight_recorder",
    "judging",
    "permission",
    "rank_states",
    "render",
    "render_words",
    "verdict",
    "watching",
]
