"""The same work as Slurm jobs. sortk does not schedule; Slurm does.

`sortk run --cluster slurm` submits a job for each stage (`jobs`), every one after the one before it, and returns. The
job of a stage is the same `sortk stage N` as anywhere, so its folders, locks, markers and resuming are those of a local
run:

    training     the job starts torchrun on each of its nodes
    all others   the job is one process; whenever the stage hands out items (records.RunJobs), it submits them as an
                 array of shards through submitit, waits for them, and combines their results (`arrays`)

So a small job waits for large ones. It has to, for only a running stage knows its items: those of stage 1 depend on
what its own first array found. That job may be killed, too: it is requeued, and takes over the shards that run.

A shard is done when its file of results exists. The queue shows whether it may still come (`queue`);
nothing else is asked of Slurm, not even accounting. A shard that has left the queue without results (killed, cancelled,
its node lost) is submitted again, a set number of times.
"""
