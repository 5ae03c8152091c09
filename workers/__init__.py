"""Workers: the processes that run arms, learn, and supervise. Imports router and strategies; nobody imports workers.

cli           the command `ragbandit`: its verbs by name, each loaded when it runs
verbs/        what is loaded for each verb
supervisor    `ragbandit up`: Redis, service, workers and learner as children of one process
process       one worker process, from its settings to its end
context       what a process has loaded, and what it runs now
consumers     the threads that do jobs, and those that hear from Redis when to look for one
tasks         the jobs of the queue `answer`
learning      the jobs of the queue `learn`, and the learners of versions
judge/        the jobs of the queue `judge`
housekeeping  the threads beside the jobs: claims, cancellation, recovery, hourly totals, roll-outs
event_loop    the loop that all arms of a process share
wiring/       settings -> generators, retrievers, arms
evaluation/   `ragbandit evaluate`
"""
