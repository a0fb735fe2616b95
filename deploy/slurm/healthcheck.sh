#!/bin/sh
# Slurm's HealthCheckProgram: drains this node if it fails, and undrains it, once healed, if ddpdoctor had drained it.
# Slurm gives it neither PATH nor HOME. Where ddpdoctor is missing, that is no reason to take the node out.
doctor=/opt/ddpdoctor/bin/ddpdoctor-gate
if [ ! -x "$doctor" ]; then
    echo "$doctor is not there; nothing was checked" >&2
    exit 0
fi
# Its jobs are of several nodes: some checks look only where there will be such jobs. Alike in all three scripts: what one has drained
# for, another is to look at.
export PET_NNODES=2
"$doctor" --for slurm-healthcheck --quick --drain
# Whatever became of it: in some releases slurmd keeps a node out whose program doesn't end with 0.
exit 0
