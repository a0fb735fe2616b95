#!/bin/sh
# Slurm's Epilog: ends what the job has left behind, and drains this node if it fails.
# Slurm gives it neither PATH nor HOME. Where ddpdoctor is missing, that is no reason to take the node out.
doctor=/opt/ddpdoctor/bin/ddpdoctor-gate
if [ ! -x "$doctor" ]; then
    echo "$doctor is not there; nothing was checked" >&2
    exit 0
fi
# Its jobs are of several nodes: some checks look only where there will be such jobs. Alike in all three scripts: what one has drained
# for, another is to look at.
export PET_NNODES=2
exec "$doctor" --for slurm-epilog --quick --kill --drain
