"""What was seen, as frozen records, and the run folder's format.

Begin with `records`. `collective_log` is the compact log of a rank's collectives, `audit` what training did; `journal` and `ring` read what
the probe wrote, `flight` reads torch's flight recorder, `run_folder` writes and reads a run folder. Nothing here decides anything.
"""
