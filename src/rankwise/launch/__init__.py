"""`rankwise run`: start the job, watch it, collect evidence, ask diagnose, act.

Begin with `watch`, the loop. `plan` reads the options, `start` starts the job below `guardian`, which adopts every process; `output` copies
what ranks print, `observe` reads what the probe wrote, `stacks` and `flight` look closer, `collect` makes evidence of it.
"""
