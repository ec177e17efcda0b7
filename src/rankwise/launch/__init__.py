"""`rankwise run`: start the job, watch it, collect evidence, ask diagnose, act.

`plan` is what to run, `guardian` keeps hold of every process, `output` carries what ranks print, `observe` sees, `stacks` and `flight` look
closer, `watch` is the loop that ties them together.
"""
