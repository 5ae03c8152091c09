"""Worker processes, which run arms, score answers and learn; the command line; the supervisor of `ragbandit up`.

cli            the command `ragbandit` and the table of its verbs; the module of a verb is loaded when the verb runs
verbs/         the verbs init, validate, index, serve, worker and up
process        a worker process from start to end; the supervisor of `ragbandit up`
context        the parts that a process has loaded, and its active runs
threads        threads that do jobs, and the event loop that all arms of a process share
tasks          jobs of the queue `answer`
inline         the same jobs in the process of the HTTP service
scoring        jobs of the queue `judge` (judge/), and scores by the function `reward.check` (check_process)
housekeeping   jobs of the queue `learn`; background threads: claims, cancellation, recovery, roll-outs, retention
wiring/        makes generators, retrievers and arms from settings
evaluation/    `ragbandit evaluate` and `ragbandit advise`; Router.advise imports it when it is called
draft          the first configuration, which `ragbandit init` writes
model_lists    finds the model server for the first configuration
"""
