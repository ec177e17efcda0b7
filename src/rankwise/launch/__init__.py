"""`rankwise run`: start the job, watch it, collect evidence, ask diagnose, act.

Begin with `watch`, the loop. `plan` reads the options, `early_start` starts the job below `guardian`, which adopts every process;
`job_output` copies what ranks print, `observe` reads what the probe wrote, `stacks` and `flight_recorder` look closer, `collect` makes
evidence of it.
"""
