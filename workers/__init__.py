"""Workers: the processes that run arms, learn and supervise. They import router and strategies; no other room imports
them.

cli            the command `ragbandit`: its verbs by name, each loaded when it runs; verbs/ has those of this room
process        one worker process, from its settings to its end; the supervisor of `ragbandit up`
context        what a process has loaded, and what it runs now
threads        the threads that do jobs, and the event loop that all arms of a process share
tasks          the jobs of the queue `answer`
scoring        the jobs of the queue `judge`, with judge/; and checks, with check_process
housekeeping   the jobs of the queue `learn`; the threads beside the jobs: claims, cancellation, recovery, roll-outs
wiring/        settings -> generators, retrievers, arms
evaluation/    `ragbandit evaluate` and `ragbandit advise`
draft          the first configuration of `ragbandit init`
"""
