#!/bin/bash
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$GAUNTLET_PORT WORLD_SIZE=2
RANK=0 "$PYTHON" train.py &
one=$!
RANK=1 EXPORT=1 "$PYTHON" train.py &
two=$!
wait $one; a=$?
wait $two; b=$?
exit $((a > b ? a : b))
