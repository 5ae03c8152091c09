"""Workers: the processes that run arms, learn, and supervise. Imports router and strategies; nobody imports workers.

cli           the command `ragbandit`: its verbs by name, each loaded when it runs
verbs         what is loaded for each verb
start         the verbs `up` and `worker`
supervisor    `ragbandit up`: Redis, service, workers and learner as children of one process
process       one worker process, from its settings to its end
consumers     the threads that take jobs from Redis
tasks         the two jobs: answer a decision, learn from feedback
housekeeping  the threads beside the jobs: recovery, cancellation, running marks, learning without Redis
active_runs   the decisions that this process runs now
event_loop    the loop that all arms of a process share
index         `ragbandit index`
log_setup     the format of our log lines
wiring/       settings -> generators, retrievers, arms
evaluation/   `ragbandit evaluate`
"""
