"""Worker processes: they run arms, score answers, learn, and supervise. They import router and strategies.

cli            the command `ragbandit` and the table of its verbs; the module of a verb is loaded when the verb runs
verbs/         the verbs init, validate, index, serve, worker and up
process        a worker process from start to end; the supervisor of `ragbandit up`
context        the parts that a process has loaded, and its active runs
threads        threads that do jobs, and the event loop that all arms of a process share
tasks          jobs of the queue `answer`; inline: the same jobs in the process of the HTTP service
scoring        jobs of the queue `judge` (judge/), and scores by a function (check_process)
housekeeping   jobs of the queue `learn`; background threads: claims, cancellation, recovery, roll-outs, retention
wiring/        from settings to generators, retrievers and arms
evaluation/    `ragbandit evaluate` and `ragbandit advise`; Router.advise imports it when it is called
draft          the first configuration, which `ragbandit init` writes; model_lists: finds its model server
"""
