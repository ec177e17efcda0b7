"""What was seen, as frozen records, and the run folder's format.

`records` are the nouns, `collectives` the compact log of a rank's collectives, `journal` and `ring` read what the probe wrote,
`flight` reads torch's flight recorder, `folder` writes and reads a run folder. Nothing here decides anything.
"""
